"""The report's explanatory texts."""

ACCURACY = """
Mean over seeds ± half width of the 95 % t interval (no interval with one seed); — means not measured. Before training
the model is the same for all seeds, so its row has no interval. AVG is the mean of the row. Values marked "paper" are
the paper's.
"""
VERSIONS = "Warning: these results were produced by different versions of the code."
QUESTIONS = """
Warning: these runs evaluated benchmarks of the same name differently (other problems, limits, sampling, verification
or metric), so their scores cannot be compared.
"""
DIRTY = (
    "A commit marked dirty had uncommitted changes; two runs with the same dirty commit may have used different code."
)
DIFFERENCES = """
Paired difference of the average over benchmarks after training, in points (1/100): the same agent, seed and problem.
The bootstrap ({resamples:,} resamples) draws seeds with replacement, the same for all benchmarks, and problems of each
benchmark with replacement, the same for all agents; agents are not resampled. The interval is from the 2.5 % to the
97.5 % quantile of the resamples. The p-value is twice the share of resamples at or beyond zero, on the side with fewer
of them, so that it is below 0.05 if the interval excludes zero. With one seed only problems are resampled, and the
result says nothing about other seeds; with few seeds the bootstrap underestimates the variation over seeds. "p, Holm"
is corrected for the number of rows of this table, separately for rows of single agents and rows over all agents. "sd of
seeds" is the standard deviation of the difference over seeds; "power, 1 point" is the probability that this comparison
detects a true difference of one point at p < 0.05. Problems with an unscored response are dropped and counted.
"""
FEW = """
Warning ("few"): fewer than {enough} seeds. The interval is too narrow and the p-value too small; neither generalises
to other seeds.
"""
COSTS = """
Training only, without evaluations; mean over seeds, sum over the agents of a pair. A point is 1/100 of one agent's
average accuracy, gained by training; — means unknown.
"""
GPU_HOURS = "GPU-hours include rollouts, updates and scoring by teachers."
CPU_HOURS = """
No hours are shown for runs on the CPU: only wall time is measured there, and other experiments may have shared the
cores.
"""
HALF = "The paper claims that HACPO is better than GSPO x 2 at half the rollout cost. Measured:"
RATIOS = """
Mean ratio per step, before the update, of the rows that were used in it (with engine.skip_zero_advantage only rows
with a nonzero advantage); the table aggregates over all steps and seeds. "below", "above": mean share of rows beyond a
bound; "no gradient": mean share of rows whose gradient is clipped.
"""
CURVES = "Line: mean over seeds. Band: minimum to maximum over seeds."

AUDIT = """
Consistency checks of the paper's own numbers (Tables 1 to 7), without any run of ours. They show that numbers are
inconsistent, not why.
"""
AUDIT_AVERAGES = """
{wrong} of {rows} rows. Rounding or truncating the values and the average to three digits explains differences up to
0.001; these are larger.
"""
AUDIT_LEAD = """
The paper claims a lead of 3.3 points over GSPO at half the rollout cost, which may mean GSPO or GSPO x 2. Mean lead
over agents, in points, from the printed averages ("printed") and from the means of the printed rows ("recomputed"); the
last three columns use the latter.
"""
AUDIT_REPETITIONS = """
Naive trains two agents together, so an agent's row depends on its partner. Of {values} values:
"""
AUDIT_COUNTS = """
With one response per problem, an accuracy is a count divided by the number of problems. Cells that are not, whether
rounded or truncated (rows that do not depend on the partner count once): {numbers}.
"""
AUDIT_AIME = """
The paper reports best@30 on AIME 2025. If that is the share of problems solved by any of 30 responses (metric best), it
is a count over 30 problems; this holds for {counts} of {num_cells} distinct cells, and for {numbers_by_count} of the
1,001 three-digit numbers. If it is verl's best@30 (metric bootstrap_best: the best of 30 draws with replacement from
the 30 responses, mean of 1,000 draws), it is the mean over problems of the values that such draws can have; this is
possible for {bootstraps} of {num_cells} cells, and for {numbers_by_bootstrap} of the 1,001 numbers. So not all cells
are counts of problems. They are consistent with verl's metric, as nearly every number is; they would also be
consistent with an average over 900 responses.
"""
AUDIT_DELTA = """
Table 5 prints {floors} under δ. As δ of Eq. 13, this would give a lower bound of {bounds}, far below every step's mean
ratio in Table 6 (minimum {least:.3f}). We take the column as the lower bound 1 − δ (method.objective.cross_floor).
"""
AUDIT_TABLE_4 = """
Table 4 names no benchmark. All its values are multiples of 1/500, so we assume MATH-500 with the limit of 4,096 tokens;
its cells at the chosen exponent therefore differ from those of Tables 1 and 7, which use 8,196.
"""
AUDIT_EXPONENT = """
Exponent of {pair}: Table 5 uses {chosen}; {is_best} in Table 4, which is on a test set (mean of both agents:
{listed}). One problem is 0.002; the standard error of 0.77 is 0.019.
"""
