"""A simulator: a whole cluster in one process, where time, chance, network and disks are the seed's."""
