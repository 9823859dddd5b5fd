"""The curve of a training: its points, the file they are in, and what they say.

points        a point, a line of curve.jsonl; which points are current; a point as flat fields
curve_file    the run directory: its writer, its attempts, which curve may be continued, steps/
publishing    where a result goes: verdict, line, loggers, heartbeat
verdicts      improving, regressing, plateau or inconclusive; CurveMonitor
rewards       the table of rewards that verdicts are made of, and the best eval
flips, plot   two points compared; the curve as a picture

Results of evals go in, from whichever thread; a file that a killed training continues comes out,
and what readers are told of it. Nothing here knows how an eval is run.
"""
