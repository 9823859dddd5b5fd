"""Evals in the background: what runs while training goes on, on weights that do not change.

dispatcher       AsyncEvalDispatcher: what users schedule, wait for and drain
snapshot_evals   what a PeriodicEval schedules, and publishes when it has ended
jobs             one table of the evals: their states, what gives way, and how each runs and ends
threads          the trainer's thread: what it waits for, and what must run in it
sigterm          evals in flight are recorded before SIGTERM ends the process
worker/          EvalWorker: a process that evaluates

A snapshot of the weights, or a function of the user's, goes in; a line of the curve that is written
ahead comes out, and later one that says how the eval ended. `curve/` has the lines, `periodic_eval`
decides what is due.
"""
