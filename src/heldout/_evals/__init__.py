"""One eval, from samples to a report: the turn loop, the pool of workers, scoring again.

In go samples, a policy and a score function; out come results in the journal and a report of them.
It does not know who answers (`models/`), how bytes lie on disk (`store/`), or that a policy trains.
"""
