"""The curve of a training: its points, the file they are in, and what they say.

points           a point, a line of curve.jsonl; which points are current; a point as flat fields
curve_file       the run directory: its writer, attempts, which curve may be continued, steps/
publishing       where a result goes: verdict, line, loggers, heartbeat
verdicts         improving, regressing, plateau or inconclusive, and the best eval; CurveMonitor
stored_verdicts  which verdict readers of a curve are given
flips, plot      two points compared; the curve as a picture

Results of evals go in, from whichever thread; a file that a killed training continues comes out,
and what readers are told of it. Nothing here knows how an eval is run.
"""
