"""Instrumented training runners: the same models under every parallel scheme.

    config, mesh    what a run was asked for; sizes of named axes
    models, data    plain PyTorch networks and their shapes; samples
    comm, exchange  collectives that are counted; averaging gradients
    transport, mpi  messages between two ranks, for servers
    compression     what gradients may be squeezed through
    model_parallel, pipeline, hybrid   what divided models are made of
    schemes         one class per scheme, listed in schemes/registry.py
    planning, job   a checked config, with everything predicted from it; identity: its record
    train, rank     the training loop of one rank; its process
    starting        from a config to a command, binding, endings
    cluster         hosts emulated with network namespaces
    sweep           many runs, one study
    catalogue       lists and docs

Only what knows no model (config, mesh, traffic, starting, cluster ...) can be imported without torch.
"""
