"""Where devices spent their time: kernels by type, name, operator and layer class, copies, streams."""
