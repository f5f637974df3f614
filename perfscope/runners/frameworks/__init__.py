"""The same CNNs in several frameworks, one program each, so that frameworks can be compared.

    registry      what there is: program, modules, why a framework trains on one process only
    request       one framework run as it was asked for
    preparation   its files; structure: the network in plain words, from the torch model
    rendezvous    what each process gets to find the others, in its framework's own words
    start         `python -m perfscope.runners.frameworks.start JOB`: starts the processes, ends with them
    train_*       the programs. They run under a Python that may not have perfscope: standard library,
                  numpy and the framework only, loaded by path; train_common and layouts are what they share
    interpreters  which Python has a framework
    envs          `perfscope bench env`: pinned environments
    matrix        many runs, resumable: `perfscope bench frameworks`

Only `preparation` and `structure` import torch.
"""
