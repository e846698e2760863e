"""The report's explanations: how to read each of its parts."""

ACCURACY = """ Mean over seeds ± half width of the 95 % t interval (no interval with one seed); — is not measured.
Before training there is one model, whatever the seed: the mean of its readings, without an interval. AVG is the mean of
the row. Printed values are the paper's, beside or under ours.
"""
VERSIONS = "Careful: these results were made by different versions of the code."
QUESTIONS = """
Careful: under one benchmark's name these runs were asked differently (other problems, limits, sampling, verification
or metric), so their scores do not compare.
"""
DIRTY = "A commit marked dirty had uncommitted changes; two of one name need not be the same code."
DIFFERENCES = """
Difference of the average over benchmarks after training, in points (1/100), paired: the same agent, seed and problem.
The bootstrap ({resamples:,} resamples) draws seeds with replacement, once for all benchmarks, and within each
benchmark problems with replacement, the same for all agents; agents are not drawn. The interval is from the 2.5 % to
the 97.5 % quantile of the resamples; the p-value is twice the share of them on the rarer side of zero (each side with
zero), so that it is below 0.05 where the interval leaves zero out. With one seed only problems are drawn, and nothing
is said about other seeds; with a handful of seeds the bootstrap understates how much they vary. "p, Holm" is
corrected for the number of rows of this table, those of single agents and those over all agents by themselves. "sd of
seeds" is the standard deviation of the difference between seeds; "power, 1 point" is the probability that such a
comparison finds a true difference of one point at p < 0.05. Problems with an unscored response are dropped and
counted.
"""
FEW = """
Careful, few: fewer than {enough} seeds. Such an interval is too narrow and such a p-value too small; neither is a
test of other seeds.
"""
COSTS = """
Training only, mean over seeds, all agents of a pair together; evaluations are not counted. A point is 1/100 of one
agent's average, gained from before to after training; — is not known.
"""
GPU_HOURS = "GPU-hours are of rollouts, updates and what teachers score."
CPU_HOURS = """
No hours are shown for runs on the CPU: what is measured there are seconds on the wall, while other trainings may have
shared the cores.
"""
HALF = "The paper's claim is HACPO above GSPO x 2 at half the rollout cost. Measured:"
RATIOS = """
Per step the mean ratio of the rows that an update passed through the model (with engine.skip_zero_advantage those
that carry an advantage), before their update; the table is over all steps and seeds. Below, above: mean share of
rows beyond a bound; no gradient: mean share that a bound left without gradient.
"""
CURVES = "Line: mean over seeds. Band: from the lowest to the highest seed."

AUDIT = """
Arithmetic on the paper's own numbers (Tables 1 to 7), without any run of ours. It says that numbers do not fit
together, not why.
"""
AUDIT_AVERAGES = """
{wrong} of {rows} rows. Rounding or cutting the parts and the average to three digits explains up to 0.001; these
are beyond it.
"""
AUDIT_LEAD = """
The paper claims 3.3 points over GSPO at half the rollout cost, which may mean GSPO or GSPO x 2. Mean over agents,
in points, from the printed averages and from the means of the printed rows; agents and single results in which
HACPO is behind, by the latter.
"""
AUDIT_REPETITIONS = """
Naive trains two agents together, so that an agent's row depends on its partner. Of {values} values:
"""
AUDIT_COUNTS = """
With one answer per problem an accuracy is a count divided by the number of problems. Cells that are none, rounded
or cut, a row that does not depend on the partner counting once: {numbers}.
"""
AUDIT_AIME = """
AIME 2025 is said to be best@30. If that is the share of problems that any of 30 answers solves (best), it is a count
over 30 problems; {counts} of {num_cells} different cells are, and {numbers_by_count} of the 1,001 numbers of three
digits. If it is verl's best@30 (bootstrap_best: the best of 30 draws from the 30 answers, with replacement, mean of
1,000), it is the mean of 30 values that such draws can have; {bootstraps} of {num_cells} cells can be, and
{numbers_by_bootstrap} of the 1,001 numbers. So the cells are not all counts of problems. They fit verl's figure, as
nearly every number does; they would fit an average over 900 answers, too.
"""
AUDIT_DELTA = """
Table 5 prints {floors} under δ. As δ of Eq. 13 the lower bound would be {bounds}, far below any step's mean ratio
in Table 6 (least {least:.3f}). We read the column as the lower bound 1 − δ (method.objective.cross_floor).
"""
AUDIT_TABLE_4 = """
Table 4 names no benchmark. All its values are multiples of 1/500, so we read MATH-500, at the limit of 4,096
tokens; its cells at the chosen exponent are therefore not those of Tables 1 and 7, which are at 8,196.
"""
AUDIT_EXPONENT = """
Exponent of {pair}: Table 5 takes {chosen}; {is_best} of Table 4, which is a test set (mean of both agents:
{listed}). One problem is 0.002; one standard error of 0.77 is 0.019.
"""
