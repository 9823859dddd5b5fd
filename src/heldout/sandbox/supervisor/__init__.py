"""The process between heldout and the programs of a sandbox. It needs the stdlib alone.

It gives itself user, mount, pid and network namespaces, with a tmpfs of limited size that becomes
/work and /tmp of the sandbox (`stage.py`). It starts every program in a bubblewrap of its own,
feeds and reads it (`program.py`), watches time, memory and processes of its whole tree (`loop.py`,
`processes.py`), kills that tree, and reads and writes files for the host (`files.py`).

So files never touch the host's disk; nothing is left over, whatever happens to the host's process,
since the namespaces end with this process, and this process with its parent; and one process serves
many sandboxes, one after the other, since a fresh tmpfs is a fresh root.

It is imported from its folder, without the rest of heldout, and its imports are few: every sandbox
outside of a pool waits for them. Root gives up its rights, so what is imported, is at the start.
"""
