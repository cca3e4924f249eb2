"""One rank of megatron.training's `pretrain`, kept in memory: writes JSON lines to stdout.

    mcore_pretrain.py --tp N --pp N [--steps N] [--die-after STEP] [--every N]
                      [--save DIRECTORY] [--load DIRECTORY] [--alone] [--twice] [--another]
                      [--unprotected-at STEP] [--again] [arguments of Megatron's]

It is killed when that step or a later one is committed; with --save it ends with files of step 2,
of which --load loads the model; --unprotected-at has the snapshot of that step raise; with --again
it first fails in the same process, without what --load loads. It says the loss and counts of every
iteration, and its state when it begins, dies and ends, as mcore_trainer.py does.
"""

import argparse
import contextlib
import functools
import logging
import os
import signal
import sys

import mcore_cpu  # first
import mcore_model
import torch
import torch.distributed as dist

mcore_cpu.install()
from mcore_trainer import own_state_of, state_of
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.training import get_args, initialize, training
from megatron.training.argument_utils import (
    core_transformer_config_from_args,
    pretrain_cfg_container_from_args,
)
from megatron.training.arguments import parse_and_validate_args
from saying import say

import unreft
import unreft.mcore
import unreft.megatron

WORDS = """
    --num-layers 4 --hidden-size 16 --num-attention-heads 4 --seq-length 8
    --max-position-embeddings 8 --vocab-size 37 --make-vocab-size-divisible-by 4
    --tokenizer-type NullTokenizer --position-embedding-type learned_absolute --no-rope-fusion
    --micro-batch-size 1 --lr 1e-2 --min-lr 1e-3 --lr-warmup-iters 2 --lr-decay-iters 100
    --lr-decay-style cosine --bf16 --attention-softmax-in-fp32 --use-distributed-optimizer
    --distributed-backend gloo --transformer-impl local --use-cpu-initialization
    --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-persist-layer-norm
    --no-bias-gelu-fusion --no-bias-dropout-fusion --num-workers 0 --log-interval 1
    --eval-iters 0 --eval-interval 1000 --ckpt-format torch_dist
""".split()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, number):
        drawn = torch.Generator().manual_seed(number)
        return torch.randint(mcore_model.VOCABULARY, (9,), generator=drawn)


def model(pre_process=True, post_process=True, vp_stage=None, config=None, pg_collection=None):
    args = get_args()
    return GPTModel(
        config or core_transformer_config_from_args(args),
        get_gpt_layer_local_spec(),
        args.padded_vocab_size,
        args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=True,
    )


def data(_, vp_stage=None):
    return Rows(), None, None


data.is_distributed = True  # each rank has them, not one of those that are tensor-parallel


def no_data(_, vp_stage=None):
    raise OSError("no data, for a test")


no_data.is_distributed = True


def forward(rows, chunk):
    row = next(rows)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    losses = chunk(row[:, :-1], torch.arange(8)[None], mask, labels=row[:, 1:])

    def summed(losses):
        loss, count = losses.float().sum(), torch.tensor(losses.numel(), dtype=torch.int)
        return loss, count, {"lm loss": torch.stack([loss.detach(), count.float()])}

    return losses, summed


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if any(word in record.getMessage() for word in ("random streams", "replaces", "newer")):
            self.lines.append(record.getMessage())


def watch(die_after, unprotected_at, lines):
    """Has the loop say what happens, and die."""
    train_step, train = training.train_step, training.train
    snapshot = unreft.mcore.ModelCheckpointer.snapshot
    now = {}

    def step_and_say(*args, **kwargs):
        result = train_step(*args, **kwargs)
        loss = {key: round(value.item(), 9) for key, value in result[0].items()}
        counts = get_args()
        say(loss=loss, consumed=counts.consumed_train_samples, step=counts.curr_iteration + 1)
        return result

    def train_and_say(forward_step, chunks, optimizer, scheduler, *args, **kwargs):
        if optimizer.is_stub_optimizer:
            return train(forward_step, chunks, optimizer, scheduler, *args, **kwargs)
        now["state"] = functools.partial(state_of, chunks, optimizer, scheduler)
        begins = get_args().iteration
        say(begins=begins, consumed=get_args().consumed_train_samples, log=lines,
            state=now["state"]() if len(optimizer.state) else None, own=own_state_of())
        result = train(forward_step, chunks, optimizer, scheduler, *args, **kwargs)
        say(final=now["state"](), own=own_state_of(), flops=result[1])
        return result

    def snapshot_and_die(ck, step):
        if step == unprotected_at:
            raise unreft.Unprotected("for a test")
        started = snapshot(ck, step)
        if ck.wait(step, 20) and die_after and step >= die_after:
            say(died=step, state=now["state"](), own=own_state_of(),
                problem=ck.status.last_problem)
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        return started

    training.train_step, training.train = step_and_say, train_and_say
    unreft.mcore.ModelCheckpointer.snapshot = snapshot_and_die


def parsed():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--pp", type=int, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--another", action="store_true")
    parser.add_argument("--unprotected-at", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    return parser.parse_known_args()


def pretrain(words, data):
    sys.argv[1:] = map(str, words)
    config = pretrain_cfg_container_from_args(parse_and_validate_args())
    training.pretrain(config, data, ModelType.encoder_or_decoder, forward, model)


def main():
    own, others = parsed()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    # Another model at each restart: what is restored is not there before.
    seed = mcore_model.SEED + int(os.environ["UNREFT_ATTEMPT"])
    words = [*WORDS, "--seed", seed, "--tensor-model-parallel-size", own.tp,
             "--pipeline-model-parallel-size", own.pp, "--train-iters", own.steps, *others]
    if "--step-batch-size-schedule" not in others:
        words += ["--global-batch-size", 4]
    if own.save:
        words += ["--save", own.save, "--save-interval", 2, "--exit-interval", 2]
    # Without Apex, Megatron-Core does not find the optimizer's count of steps.
    loads = ["--load", own.load, "--no-load-optim", "--no-load-rng"] if own.load else []
    # Asks for CUDA, and compiles what reads files.
    training.initialize_megatron = functools.partial(
        initialize.initialize_megatron, allow_no_cuda=True
    )
    initialize._compile_dependencies = lambda: None
    # The innermost: what is said of the loop is between its own and what is installed.
    log = Lines()
    logging.getLogger("unreft").addHandler(log)
    logging.getLogger("unreft").setLevel(logging.INFO)
    watch(own.die_after, own.unprotected_at, log.lines)
    if own.another:  # of another release
        del training.train
    try:
        if not own.alone:
            unreft.megatron.install(every=own.every, extras=None)
        if own.twice:
            unreft.megatron.install()
        if own.again:
            with contextlib.suppress(OSError):
                pretrain(words, no_data)
            training.destroy_global_state()
        pretrain([*words, *loads], data)
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
