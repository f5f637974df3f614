"""The probe of mpi4py, with or without a framework beside it; `probe.arm` is where it begins."""
