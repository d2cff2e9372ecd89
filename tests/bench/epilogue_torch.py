#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user of PyTorch would run in place of the fused operation, on one GPU.

For each of N logical ranks: sum of the N ranks' bf16 tensors (in place of an all-reduce), plus the residual,
RMSNorm, FP8 e4m3fn with a scale per token; eager, and under torch.compile (one function for all ranks). Times are
medians of CUDA events over replays of a CUDA graph, where capturing works, else of plain calls. Beside
`gpu_bench --epilogue` in the same run.

    tests/bench/epilogue_torch.py [--ranks 2,4,8] [--shapes 12x6144,512x6144,2517x6144,2048x8192,4097x6144]

Exit status: 0, 77 without PyTorch or a GPU.
"""

import argparse
import statistics
import sys

FP8_MAX = 448.0
EPS = 1e-6


def step(torch, inputs, residual, weight):
    """(residual_out, codes, scales) of one rank. inputs: N tensors [tokens, hidden]."""
    total = inputs[0].float()
    for x in inputs[1:]:
        total = total + x.float()
    hidden = total.to(torch.bfloat16) + residual
    h = hidden.float()
    rstd = torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + EPS)
    y = (h * rstd * weight.float()).to(torch.bfloat16)
    amax = y.abs().amax(dim=-1, keepdim=True).float()
    scale = torch.clamp(amax / FP8_MAX, min=2.0**-126)
    codes = torch.clamp(y.float() / scale, -FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return hidden, codes, scale


def all_ranks(torch, inputs, residuals, weights):
    return [step(torch, inputs, r, w) for r, w in zip(residuals, weights)]


def median_us(torch, run, rounds=10, calls=5):
    """Median microseconds of one call of run()."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(calls):
                run()
        replay, how = graph.replay, "graph"
    except Exception:  # what cannot be captured is timed as it is

        def replay():
            for _ in range(calls):
                run()

        how = "calls"
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times), how


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--shapes", default="12x6144,512x6144,2517x6144,2048x8192,4097x6144")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}\n")
    print("| shape | ranks | eager us | torch.compile us | timed as |\n|---|---|---|---|---|")
    torch.manual_seed(1)
    for ranks in (int(text) for text in arguments.ranks.split(",")):
        for shape in arguments.shapes.split(","):
            tokens, hidden = (int(text) for text in shape.split("x"))

            def make(*size):
                return torch.randn(*size, device="cuda").to(torch.bfloat16)

            inputs = [make(tokens, hidden) for _ in range(ranks)]
            residuals = [make(tokens, hidden) for _ in range(ranks)]
            weights = [make(hidden) for _ in range(ranks)]
            with torch.inference_mode():
                eager, how = median_us(torch, lambda: all_ranks(torch, inputs, residuals, weights))
                compiled_text = "-"
                torch._dynamo.reset()  # every case is the same code to it, and it compiles that a few times only
                try:
                    compiled = torch.compile(lambda i, r, w: all_ranks(torch, i, r, w), dynamic=False)
                    us, compiled_how = median_us(torch, lambda: compiled(inputs, residuals, weights))
                    compiled_text, how = f"{us:.1f}", f"{how}, {compiled_how}"
                except Exception as error:  # no compiler on this machine, say
                    print(f"torch.compile: {str(error).splitlines()[0]}", file=sys.stderr)
            print(f"| [{tokens},{hidden}] | {ranks} | {eager:.1f} | {compiled_text} | {how} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
