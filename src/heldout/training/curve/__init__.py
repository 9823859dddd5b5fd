"""The curve of a training: its points, the file they are in, and what they say.

points             a point, a line of curve.jsonl; which points are current
curve_file         the run directory: its writer, its attempts, which curve may be continued
scheduled_points   the line that is written ahead, skips, and what an evaluator returned
publishing         where a point goes: verdict, line, loggers, heartbeat
verdicts           improving, regressing, plateau or inconclusive; CurveMonitor
best               the best eval so far
reward_table       rewards of points and samples, which both are made of
point_fields       a point as flat fields, for heartbeats and logs
flips, plot        two points compared; the curve as a picture
kept_steps         which evals keep their answers

Results of evals go in, from whichever thread; a file that a killed training continues comes out,
and what readers are told of it. Nothing here knows how an eval is run.
"""
