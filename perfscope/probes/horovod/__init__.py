"""The probe of Horovod; `probe.arm` is where it begins."""
