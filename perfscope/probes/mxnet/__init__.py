"""The probe of MXNet 1.x; `probe.arm` is where it begins."""
