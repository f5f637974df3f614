"""The probe of JAX; `probe.arm` is where it begins."""
