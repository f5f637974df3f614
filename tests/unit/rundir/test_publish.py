"""Texts that are published name no folder above the last part of a path."""

from __future__ import annotations

import pytest

from perfscope.rundir.publish import Publisher


@pytest.mark.parametrize(
    ("argument", "published"),
    [
        ("-o/scratch/acme/out", "-o…/out"),
        ("-I/srv/clients/acme/inc", "-I…/inc"),
        ("-L../../clients/acme/lib", "-L…/lib"),
        ("--out=/scratch/acme/lr=0.1/bob/ckpt", "--out=…/ckpt"),
        ("env.OUT=x=/scratch/acme/ckpt", "env.OUT=x=…/ckpt"),
        ("/scratch/My Client/secret/x.py", "…/x.py"),
        ("../../clients/acme/x", "…/x"),
        ("~/clients/acme/x", "…/x"),
        ("--data=/srv/acme/a,/srv/acme/b", "--data=…/a,…/b"),
        ("--path=/srv/acme/bin:../acme/bin", "--path=…/bin:…/bin"),
        ("-Wl,-rpath,/srv/acme/lib", "-Wl,-rpath,…/lib"),
        ("cc -I/srv/acme/inc ../acme/x.c", "cc -I…/inc …/x.c"),
        ("s3://acme-bucket", "s3://acme-bucket"),
        ("/data", "/data"),
        ("conf/model=small/lr=0.1", "conf/model=small/lr=0.1"),
        ("~0.5", "~0.5"),
        ("--ratio=1/2", "--ratio=1/2"),
    ],
)
def test_an_argument_keeps_the_last_part_of_its_path(argument: str, published: str) -> None:
    publisher = Publisher()
    assert publisher.argument(argument) == published
    assert publisher.command(["python", argument]) == f"python {published}"
    assert Publisher(keep_users=True).argument(argument) == argument
