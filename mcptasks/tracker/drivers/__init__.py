"""One driver per way of speaking to a task server; each turns its answers into the words of `remote`."""
