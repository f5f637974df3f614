"""The probe of Keras, on any of its backends; `probe.arm` is where it begins."""
