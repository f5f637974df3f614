"""The probe of TensorFlow; `probe.arm` is where it begins."""
