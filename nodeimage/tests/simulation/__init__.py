"""A simulator: a whole cluster in one process, in which the seed determines time, chance, network and disks."""
