# %% [markdown]
# # Two models that learn together, in a notebook
# Open this file as a notebook (VS Code, PyCharm, or `jupytext --to ipynb`). The pair `tiny` trains on a laptop; the
# first call also makes its two models, which takes a minute.

# %%
import hacpo

table = hacpo.train("tiny", "hacpo", num_steps=2)
print(table)

# %% [markdown]
# Every run in the folder `runs`, and the result of this one. `hacpo.results("demo")` reads a whole grid.

# %%
print(hacpo.runs())

# %%
run = table["run"][0]
print(hacpo.results(run))

# %% [markdown]
# What the agents answered in the last step, what it earned, and how each learner used it: its own responses and its
# partner's, whose ratio is that of its own tokens.

# %%
responses = hacpo.samples(run, step=2)
print(responses[["problem_id", "agent", "text", "status", "reward"]].head(8))

# %%
columns = [name for name in responses if name.startswith(("advantage_for_", "ratio_for_"))]
print(responses.groupby("agent")[columns].mean())
