"""Command lines that hold a secret, all hidden, and ordinary training commands, none changed."""

from __future__ import annotations

import random
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.rundir.redact import redact_argv, redact_labels, redact_text

# Made up, of the shapes of real ones; split so that no scanner takes them for real.
PW = "correcthorse"
PW_DIGIT = "hunter2"
HEX40 = "5f0c6b1e" + "9a7d4c3b2f1e0d9c8b7a6f5e4d3c2b1a"
AWS = "wJalrXUtnFEMI/K7MDENG" + "/bPxRfiCYzzzzzzzzKEY"[:19]
B62 = "q8ZtR3vKx9LmW2" + "pYb7NcD4hJf6Gs5"
MIXED = "Xk7mQ2vLw9"

# (command line, what must not be in what is stored)
SECRET_LINES = [
    (f"prog --pin {MIXED}", MIXED),
    ("prog --pin 48213907", "48213907"),
    (f"prog --mfa-code {MIXED}", MIXED),
    ('prog --seed-phrase "zoo apple river table stone cloud"', "river table"),
    (f"prog --license {MIXED}-{MIXED}", MIXED),
    (f"curl --header=X-Auth:{MIXED} host", MIXED),
    (f'curl --header "X-Auth: {MIXED}" host', MIXED),
    (f'curl -H "X-Auth: {MIXED}" host', MIXED),
    (f"prog --tok {MIXED}", MIXED),
    (f"prog --signing {MIXED}", MIXED),
    (f"prog --hmac {MIXED}", MIXED),
    (f"prog --hmac-key={MIXED}", MIXED),
    (f"prog --salt {MIXED}", MIXED),
    (f"smbclient -U user%{MIXED} //host/share", MIXED),
    (f"smbclient --user=user%{MIXED} //host/share", MIXED),
    (f"sqlplus scott/{MIXED}@db", MIXED),
    (f"vault login {MIXED}", MIXED),
    (f"openssl enc -aes-256-cbc -k {MIXED} -in a", MIXED),
    (f"kubectl create secret generic n --from-literal=k={MIXED}", MIXED),
    (f'bash -c "echo {MIXED} | docker login -u me --password-stdin"', MIXED),
    (f'bash -c "printf %s {MIXED} | docker login -u me --password-stdin"', MIXED),
    (f"env PATVALUE={MIXED} python t.py", MIXED),
    (f"prog --keys {MIXED}", MIXED),
    (f"kaggle config set -n key -v {MIXED}", MIXED),
    (f"train_net.py --opts SOLVER.LR 0.1 wandb.key {PW}", PW),
    (f"train_net.py --cfg-options lr 0.1 token {PW}", PW),
    (f"train_net.py --num-gpus 1 SOLVER.LR 0.1 WANDB.KEY {PW}", PW),
    (f"prog --pin={MIXED}", MIXED),
    (f"prog --totp {MIXED}", MIXED),
    (f"prog --license-key {MIXED}", MIXED),
    (f"prog --hmac_secret {MIXED}", MIXED),
    (f"openssl enc -pass pass:{MIXED}", MIXED),
    (f"gpg --passphrase {MIXED}", MIXED),
    (f"prog --auth-header={MIXED}", MIXED),
    (f"prog --access-code {MIXED}", MIXED),
    (f"prog --verification-code={MIXED}", MIXED),
    ("prog --mfa 48291357", "48291357"),
    (f"prog --recovery-phrase '{MIXED} {MIXED}'", MIXED),
    (f"impdp scott/{MIXED} full=y", MIXED),
    (f"bash -c 'docker login --password-stdin <<< {MIXED}'", MIXED),
    (f"bash -c 'cat x; echo \"{MIXED}\" | helm registry login -u me reg'", MIXED),
    (f"prog --product-license={MIXED}-{MIXED}", MIXED),
    (f"rpcclient -U dom+user%{MIXED} host", MIXED),
    (f"prog --hash-salt {MIXED}", MIXED),
    (f"train.py --db-pass {PW}", PW),
    (f"train.py --pass={PW}", PW),
    (f"train.py --pass {PW_DIGIT}", PW_DIGIT),
    (f"train.py --ssh-pass {PW}", PW),
    (f"train.py --sshpass {PW}", PW),
    (f"train.py --creds {PW}", PW),
    (f"train.py --cred={PW}", PW),
    (f"train.py --jwt {PW}", PW),
    (f"train.py --pat {PW}", PW),
    (f"train.py --github-pat={PW}", PW),
    (f"env DBPASSWORD={PW} python train.py", PW),
    (f"env MYTOKEN={PW} python train.py", PW),
    (f"env PGPASSWORD={PW} python train.py", PW),
    (f"env MYSQL_PWD={PW} python train.py", PW),
    (f"env DB_PW={PW} python train.py", PW),
    (f"env OAUTH2_CLIENT_SECRET={PW} python train.py", PW),
    (f"env SENTRY_DSN=https://{PW}@sentry.example/3 python train.py", PW),
    (f"env AWS_SESSION_TOKEN={PW} python train.py", PW),
    (f"env GH_PAT={PW} python train.py", PW),
    (f"env WANDB_API_KEY={HEX40} python train.py", HEX40),
    (f"env WANDB_KEY2={HEX40} python train.py", HEX40),
    (f"env TOKEN1={PW} python train.py", PW),
    (f"train.py --hftoken {PW}", PW),
    (f"train.py --hfToken {PW}", PW),
    (f"train.py --HF_TOKEN={PW}", PW),
    (f"train.py --push_to_hub_token {PW}", PW),
    (f"train.py --apikey {PW}", PW),
    (f"train.py --wandb_key={HEX40}", HEX40),
    (f"train.py --key {PW_DIGIT}", PW_DIGIT),
    (f"train.py --keypass {PW}", PW),
    (f"train.py --signing-key {PW}", PW),
    (f"train.py --auth {PW}", PW),
    (f"train.py --basicauth joe:{PW}", PW),
    (f"train.py --cookie 'sid={PW}'", PW),
    (f"train.py --session-cookie {PW}", PW),
    (f"train.py --session {PW}", PW),
    (f"train.py --dsn postgres://joe:{PW}@db/x", PW),
    (f"train.py --db postgres://joe:p/{PW}@db.example:5432/x", PW),
    (f"train.py --db postgres://joe:p@{PW}@db.example:5432/x", PW),
    (f"train.py --broker redis://:{PW}@cache:6379/0", PW),
    (f"train.py --db joe:{PW}@db.example:5432/x", PW),
    (f"train.py logger.wandb.api_key={PW}", PW),
    (f"train.py +hub.token={PW} trainer.max_epochs=3", PW),
    (f"train.py secrets.hf={PW}", PW),
    (f"train.py --set a=1,hub.token={PW}", PW),
    (f'train.py --config \'{{"lr": 0.1, "password": "{PW}"}}\'', PW),
    (f'train.py --config \'{{"lr":0.1,"hub":{{"token":"{PW}"}},"x":2}}\'', PW),
    (f"train.py --override \"{{'token': '{PW}'}}\"", PW),
    (f"train.py --label password={PW}", PW),
    (f"curl -u joe:{PW} https://example.org/data", PW),
    (f"curl -ujoe:{PW} https://example.org/data", PW),
    (f"curl --user=joe:{PW} https://example.org/data", PW),
    (f"curl -H 'Authorization: Bearer {PW}' https://example.org", PW),
    (f"curl -H 'X-Api-Key: {PW}' https://example.org", PW),
    (f"curl -H 'Authorization: token {PW}' https://example.org", PW),
    (f"curl 'https://example.org/data?token={PW}&x=1'", PW),
    (f"mysql -ujoe -p{PW} metrics", PW),
    (f"sshpass -p {PW} ssh node1 python train.py", PW),
    (f"redis-cli -a {PW} ping", PW),
    (f"docker login -u joe -p {PW} registry.example", PW),
    (f"docker run -e HF_TOKEN={PW} image python train.py", PW),
    (f"wandb login {HEX40}", HEX40),
    (f"aws configure set aws_secret_access_key {PW}", PW),
    (f"aws configure set aws_session_token {PW}", PW),
    (f"npm config set //r.example/:_authToken {PW}", PW),
    (f"mpirun -genv MYTOKEN {PW} python train.py", PW),
    (f"srun --export=ALL,HFTOKEN={PW} python train.py", PW),
    (f"python -c \"import os; os.environ['HF_TOKEN']='{PW}'\"", PW),
    (f"curl -d 'user=a&password={PW}' https://x.example", PW),
    (f'x --runtime-env-json \'{{"env_vars": {{"WANDB_API_KEY": "{PW}"}}}}\'', PW),
    (f"bash -c 'export HFTOKEN={PW}; python train.py'", PW),
    (f"bash -c 'wandb login {HEX40} && python train.py'", HEX40),
    (f"bash -lc 'curl -u joe:{PW} https://x.example | tar x && python train.py'", PW),
    (f'bash -c \'python train.py --note "a b" --db-pass "{PW} battery"\'', PW),
    (f"sh -c 'DB_PASS={PW} torchrun train.py'", PW),
    ("train.py --notify https://hooks.slack.com/services/T0123ABCD/B0123ABCD/" + B62[:24], B62[:24]),
    ("train.py --notify https://discord.com/api/webhooks/123456789012345678/" + B62, B62),
    (f"train.py --slack-webhook https://chat.example/{PW}", PW),
    ("train.py --bot 123456789:AA" + B62 + "abcd", B62),
    ("train.py glsa_" + B62, B62),
    ("train.py r8_" + B62, B62),
    ("train.py dckr_pat_" + B62[:27], B62[:27]),
    ("train.py SG." + B62[:22] + "." + B62, B62),
    ("train.py gho_" + B62, B62),
    ("train.py ASIA" + "IOSFODNN7ZZZZZZZ", "IOSFODNN7"),
    ("train.py npm_" + B62, B62),
    ("train.py sk_live_" + B62, B62),
    (f"train.py {AWS}", AWS),
    (f"train.py --aws {AWS}", AWS),
    (f"train.py --thing {B62}", B62),
    (f"train.py --thing={B62}", B62),
    (f"train.py s3={B62},region=eu", B62),
    ("train.py 9c1185a5c5e9fc54612808977ee8f548", "9c1185a5c5e9fc54"),
    ("train.py 'AccountName=x;AccountKey=" + PW + "==;EndpointSuffix=y'", PW),
    (f"java -Dhub.token={PW} -jar train.jar", PW),
    (f"train.py 'Server=db;Password={PW};'", PW),
    (f"git clone https://joe:{PW}@git.example/x/y", PW),
    (f"train.py 'password = {PW}'", PW),
    (f"train.py --private_key '-----BEGIN OPENSSH PRIVATE KEY-----\n{PW}'", PW),
]

HARMLESS_LINES = """
python train_net.py --num-gpus 1 MODEL.TOKENS 128 DATA.KEY_DIM 64 MODEL.TOKENIZER bpe SOLVER.BASE_LR 0.1
python run.py --opts model.key_dim 64 data.num_tokens 512 optim.lr 0.1
python train.py --num-tokens 1024 --max-tokens 512 --tokens 300B --train-tokens 1e9
python train.py --tokenizer gpt2 --tokenizer-name bert-base-uncased --tokenizer_path ./tok/tokenizer.json
python train.py --pass-through --passes 3 --num-passes=2 --pass 2
python train.py --keyframes 8 --keypoints 17 --keyword sports --monkey 3 --donkey x
python train.py --path data --pattern '*.jpg' --patience 5 --patch-size 16 --compat v1
python train.py --key image --sort-key length --image-key jpg --input_key content --label-key cls
python train.py --num-key-value-heads 8 --key-dim 64 --qk-norm --query-key-value-bias True --kv_heads 2
python train.py --pad-token '<pad>' --eos-token '</s>' --mask-token '[MASK]' --pad_token_id 0 \
--stop-token '<|endoftext|>'
python train.py --token-dropout 0.1 --token-mixer pool --use-cls-token True --token_type_vocab_size 2
python train.py --author me --authors 'a b' --authority x
python train.py --session-timeout 30 --num-sessions 4 --auth-type oidc --auth none
python train.py --token-file /etc/token --password-file /run/secrets/pw --credentials ~/keys/c.json
python train.py --ssh-key ~/.ssh/id_ed25519 --key-file certs/server.pem --cookie-jar jar.txt
python train.py --secret-name train-secrets --rng-key 42 --prng_key 0 --cache-key-size 3
python -u train.py --epochs 3 --lr=0.1 --weight-decay 1e-4 --betas 0.9,0.95
torchrun --standalone --nproc-per-node 4 train.py --batch-size 256 --amp bf16
torchrun --nnodes=2 --rdzv-id=job-1234 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 train.py
mpirun -np 8 --bind-to core --map-by ppr:2:socket -x OMP_NUM_THREADS=4 python train.py
srun -p gpu -n 16 --gpus-per-task 1 --cpu-bind=cores --mem-per-cpu=4G python train.py
accelerate launch --config_file configs/fsdp.yaml --num_processes 8 run_clm.py --model_name_or_path gpt2
deepspeed --hostfile hosts --num_gpus 8 train.py --deepspeed ds_config_zero3.json
horovodrun -np 4 -H node1:2,node2:2 python train.py
python train.py --model meta-llama/Llama-3.1-8B-Instruct --dataset togethercomputer/RedPajama-Data-1T
python train.py --model stabilityai/stable-diffusion-xl-base-1.0 --revision \
462165984030d82259a11f4367a4eed129e94a7b
python train.py --model vit_large_patch16_224.augreg_in21k_ft_in1k --pretrained
python train.py --model timm/convnextv2_huge.fcmae_ft_in22k_in1k_512 --input-size 3 512 512
python train.py --data /datasets/imagenet/ILSVRC2012_img_train --val /datasets/imagenet/ILSVRC2012_img_val
python train.py --data s3://bucket-eu-west-1/tokenized/c4/en/c4-train.00000-of-01024.json.gz
python train.py --data gs://my-bucket/data/webdataset/shard-{000000..001023}.tar
python train.py --data https://example.org/data/train-00001-of-00010.parquet
python train.py --out runs/2026-11-22/resnet50_b256_lr0.1_wd1e-4_seed42_amp_bf16_run07
python train.py --ckpt checkpoints/step_00100000/model-00001-of-00004.safetensors
python train.py --resume /scratch/u1234567/experiments/exp_2026_11_22_174502_abc/ckpt.pt
python train.py --hash 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
python train.py --commit 4f05660a1b2c3d4e5f60718293a4b5c6d7e8f901
python train.py --id 123e4567-e89b-12d3-a456-426614174000
python train.py --device GPU-8f5e0a3c-1b2d-4e5f-8a9b-0c1d2e3f4a5b
python train.py --seed 12345678901234567890123 --steps 1000000
python train.py model=resnet50 trainer.max_epochs=3 optimizer.lr=0.1 data.num_workers=8
python train.py +experiment=gpt2_small trainer.precision=bf16-mixed data.tokenizer.name=gpt2 \
model.max_tokens=2048
python train.py hydra.run.dir=outputs/a hydra/launcher=submitit_slurm ++trainer.devices=8
python train.py --layers '[2,2,2,2]' --schedule '{"warmup": 100, "decay": "cosine"}'
python train.py --config '{"optimizer":{"type":"AdamW","params":{"lr":0.0003}},"train_batch_size":64}'
python train.py DistributedDataParallelCommHookState ReduceLROnPlateau CosineAnnealingWarmRestarts
python train.py --optimizer DistributedShampooPreconditioner --scheduler get_cosine_schedule_with_warmup
python -m torch.distributed.run --nproc_per_node=8 -m package.module.training.pretrain_vision_transformer
bash -c 'cd /workspace && OMP_NUM_THREADS=4 python train.py --epochs 3'
bash -c 'source ~/.venv/bin/activate; exec torchrun --nproc-per-node 2 train.py'
docker run --rm --gpus all -u 1000:1000 -p 8080:80 -v /data:/data nvcr.io/nvidia/pytorch:24.05-py3 \
python train.py
docker run --shm-size 8g \
registry.example/team/train@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
singularity exec --nv --bind /scratch:/scratch image.sif python train.py
apptainer exec --nv docker://nvcr.io/nvidia/pytorch:24.05-py3 python train.py
pip install git+https://github.com/huggingface/transformers@v4.44.0
env CUDA_VISIBLE_DEVICES=0,1 NCCL_SOCKET_IFNAME=eth0 TOKENIZERS_PARALLELISM=false python train.py
env PYTHONPATH=src:lib OMP_PROC_BIND=close OMP_PLACES='{0:4},{4:4}' python train.py
numactl --cpunodebind=0 --membind=0 python train.py
nsys profile -o out --trace=cuda,nvtx python train.py
python train.py --image-size 224x224 --crop 0.08,1.0 --mean 0.485 0.456 0.406
python train.py --node-list nid[001234-001299,001400] --time 12:30:00 --start 2026-11-22T17:45:02Z
python train.py --checkpoint-activations --gradient-accumulation-steps 4 --find-unused-parameters False
python train.py --host 10.0.0.1:29500 --mac 0a:1b:2c:3d:4e:5f --pci 0000:3b:00.0
python pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --micro-batch-size 1
python pretrain_gpt.py --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --tokenizer-type \
GPT2BPETokenizer
python train.py --loss-fn label_smoothing_cross_entropy --activation gelu_pytorch_tanh --norm rmsnorm
python train.py --authenticate-steps 3 --compass north --bypass-cache --sacred-dir runs
python train.py --email me@example.org --git git@github.com:x/y.git
python dlrm_s_pytorch.py --arch-embedding-size=4-3-2 --arch-mlp-bot=13-512-256-64-16 --data-generation=random
python tools/train.py configs/faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py --cfg-options optim_wrapper.lr=0.01
fairseq-train data-bin/wmt16_en_de_bpe32k --arch transformer_vaswani_wmt_en_de_big --max-tokens \
3584 --update-freq 16
python train.py --tags mixtral8x22b-v0.1 qwen2.5-coder-32b-instruct-awq deepseek-v3-0324 phi-3.5-moe-instruct
aws s3 cp s3://b/key=val/p .
prog --schedule lr:0.1@step:100
prog --lr-schedule cosine:1e-3@5
prog --session train
prog --cred-intervals 0.9
prog --jwt-test 0
prog --sequence MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQ
python -c "print(tokens=5, key=3)"
prog --tokenizer gpt2
prog --max-tokens 4096
prog --key-dim 64
prog --num-key-value-heads 8
prog --pin-memory true
prog --pin_memory
prog --pin-memory=1
prog --seed 42
prog --salt-and-pepper 0.1
prog --header-rows 1
prog --license-plate-model x
prog --sort-key loss
prog --monitor-key val/loss
prog --pass 2
prog --passes 3
prog --keys image,label
prog --license mit
prog --pin 3
prog --pin cores
numactl --pin 0-3
mpirun --bind-to core --map-by ppr:1:node
prog --seed-everything 1
prog --header X
prog --toks 5
prog --salt 0
prog --commit 0123456789abcdef0123456789abcdef01234567
prog --id 550e8400-e29b-41d4-a716-446655440000
prog --data s3://bucket/a/b=c/d
prog --step-size 5@10
docker run -u 1000:1000 img
prog --range a/b@c
pip install git+https://github.com/org/repo@v1.2
ssh user@host
rsync me/data@host
prog --signing-rate 3
prog -k 5 -v 3
echo hello | cat
prog --mfa-ratio 0.5
prog --ratio 50%
prog --keys q,k,v
prog --patience 3
prog --pattern x
prog --license apache-2.0
deepspeed --hostfile h --master_port 29500 t.py
prog --metrics map@50 hit@10 recall@5:20
prog --device GPU-8f5e0a3c-1b2d-4e5f-8a9b-0c1d2e3f4a5b --boards CC33xx/CC35xx/CC37xx
prog --model meta-llama/Llama-3.2-11B-Vision-Instruct --base Qwen2-VL-72B-Instruct-GPTQ-Int4 \
--name R50x1-BiT-M-A100x8
prog --model ViT-H-14-378-quickgelu/dfn5B --run exp/R50x1-BiT-M/A100x8-lr3e-4
prog --cluster gpuH100x8-NVL72_rackB12-U7
python -u train.py -p 3
python -u train.py -p data
docker run -u 1000:1000 -p 8080:80 img
docker run -u root -p 8080:80 img
squeue -u me -p gpu
sbatch -u me -p gpu job.sh
srun -u -p gpu python t.py
mpirun -np 4 -x A=1 python -u t.py -a resnet50 -b 256
python main.py -a resnet50 --dist-url tcp://127.0.0.1:29500
python main.py -A adam -U 3 -u 4
python t.py --data s3://bucket/secret-santa/set/a=1
python t.py kv cache size=3
python t.py --kv-write update x=1
python t.py create model=vit depth=12
python t.py set lr=0.1
python t.py --vault-size 3 put a=1
python t.py session train8 lr=1
python t.py key value7x
python prep.py data/tokens shard00x7
python t.py --header a,b
python t.py --user alice
python t.py --user-embedding alice:3
bash -c 'echo hi | sudo tee /x'
bash -c 'echo 3 | sudo tee /proc/sys/vm/drop_caches; python t.py'
aria2c -x 16 -s 16 http://h/f
ab -n 100 -c 10 http://h/
python t.py --lr-schedule a: 1
python t.py tokens: 5
python t.py --t http://h/t/data/x http://h/t/train2024/x.tar
git -c core.autocrlf=false clone https://g/p
python t.py --model-config hidden: 3
nsys profile -t cuda,nvtx -o out -w true python t.py
ncu --set full -o x python t.py
torchrun --nproc-per-node 2 t.py --bw unlock lr=0.12345678
""".strip().splitlines()


_TOOLS = Path(__file__).parents[2] / "data" / "redaction" / "tools.txt"
_HIDDEN = {"{PW}": PW, "{MIXED}": MIXED, "{B62}": B62, "{HEX32}": "5f0c6b1e" + "9a7d4c3b2f1e0d9c8b7a6f5e"}


def of_tools() -> Iterator[tuple[str, str]]:
    """Lines of the file with their secrets in place, once for each of them."""
    for template in _TOOLS.read_text().splitlines()[1:]:
        line = template
        for placeholder, secret in _HIDDEN.items():
            line = line.replace(placeholder, secret)
        yield from ((line, secret) for placeholder, secret in _HIDDEN.items() if placeholder in template)


SECRET_LINES += of_tools()


@pytest.mark.parametrize(("line", "secret"), SECRET_LINES)
def test_a_secret_on_a_command_line_is_hidden(line: str, secret: str) -> None:
    argv = shlex.split(line)
    assert secret in " ".join(argv)
    stored = redact_argv(argv)
    assert len(stored) == len(argv)
    assert secret not in " ".join(stored)
    assert secret not in redact_text(line)  # as one text, as in a message
    assert "redacted" in " ".join(stored)


@pytest.mark.parametrize("line", HARMLESS_LINES)
def test_an_ordinary_command_line_stays_as_it_is(line: str) -> None:
    argv = shlex.split(line)
    assert redact_argv(argv) == argv


def test_the_tables_are_large_and_no_secret_is_empty() -> None:
    assert len(SECRET_LINES) >= 300
    assert len(HARMLESS_LINES) >= 60
    assert all(len(secret) >= 7 for _, secret in SECRET_LINES)


@pytest.mark.parametrize("line", [line for line, _ in SECRET_LINES])
def test_what_was_redacted_once_stays_as_it_is(line: str) -> None:
    stored = redact_argv(shlex.split(line))
    assert redact_argv(stored) == stored


def test_long_random_words_say_how_long_they_were() -> None:
    assert redact_argv([f"--x={B62}"]) == [f"--x=‹redacted {len(B62)} characters›"]
    assert redact_argv([AWS]) == ["‹redacted 40 characters›"]


@pytest.mark.parametrize("separators", ["+/", "-_"])
@pytest.mark.parametrize("length", [20, 24, 28])
def test_short_random_words_in_base64_are_hidden(length: int, separators: str) -> None:
    source = random.Random(length)
    alphabet = string.ascii_letters + string.digits + separators
    secrets = ["".join(source.choices(alphabet, k=length)) for _ in range(500)]
    shown = [secret for secret in secrets if secret in redact_argv(["train.py", secret])]
    assert len(shown) <= 0.08 * len(secrets)


def test_a_label_is_hidden_for_its_name() -> None:
    labels = {
        "password": PW,
        "batch": "64",
        "num_tokens": "1024",
        "hub_token": PW_DIGIT,
        "note": f"--db-pass {PW}",
    }
    assert redact_labels({**labels, "note": f"--db-pass {PW}"}) == {
        "password": "<redacted>",
        "batch": "64",
        "num_tokens": "1024",
        "hub_token": "<redacted>",
        "note": "--db-pass <redacted>",
    }
