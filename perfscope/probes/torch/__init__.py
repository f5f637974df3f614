"""The probe of PyTorch; `probe.arm` is where it begins."""
