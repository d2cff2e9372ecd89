#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes expected_sqnr.csv of this folder with the executable wire format specification.

  make_expected.py --reference PATH/codec_reference.py            write the CSV
  make_expected.py --reference PATH/codec_reference.py --check    compare with the CSV
  make_expected.py --reference PATH/codec_reference.py --table    print the table of README.md

Needs numpy. codec_reference.py is the numpy program that defines the wire format; it is not in this
repository. For every set of .npy files here, dtype, codec and algorithm the CSV has the SQNR of a
whole all-reduce (sum) against the exact sum of the inputs in double precision, and the CRC-32
(zlib's) of the little-endian result. bf16 inputs are the fp16 files rounded to bf16; fp32 inputs
are the files, widened.
"""
import argparse
import importlib.util
import os
import sys
import zlib

import numpy as np

SETS = (('attn_out', 3), ('mlp_down', 3), ('mlp_down', 5))
HERE = os.path.dirname(os.path.abspath(__file__))


def load_reference(path):
    spec = importlib.util.spec_from_file_location('codec_reference', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules['codec_reference'] = module
    spec.loader.exec_module(module)
    return module


def load_ranks(projection, layer, ranks):
    name = '%s.layer%d.tp%d' % (projection, layer, ranks)
    return [np.load(os.path.join(HERE, '%s.rank%d.npy' % (name, r))).astype(np.float32).ravel()
            for r in range(ranks)]


def rows(ref):
    """Yields (projection, layer, ranks, dtype, codec, algorithm, sqnr in dB, crc32)."""
    for projection, layer in SETS:
        for ranks in (2, 4):
            parts = load_ranks(projection, layer, ranks)
            for dtype in ref.DTYPES:
                xs = [ref.round_to(p, dtype) for p in parts]
                exact = sum(ref.to_f32(x, dtype).astype(np.float64) for x in xs)
                for codec in ref.CODECS:
                    for algorithm in ('two_shot', 'one_shot'):
                        y = ref.all_reduce(xs, codec, dtype, algorithm)
                        yield (projection, layer, ranks, dtype, codec, algorithm,
                               ref.sqnr(exact, ref.to_f32(y, dtype)), zlib.crc32(y.tobytes()))


def csv(table):
    lines = ['projection,layer,ranks,dtype,codec,algorithm,sqnr_db,result_crc32']
    lines += ['%s,%d,%d,%s,%s,%s,%.4f,%08x' % row for row in table]
    return '\n'.join(lines) + '\n'


def markdown(ref, table):
    """SQNR by codec (fp16), with the bytes of a full tile of 2048 elements."""
    value = {row[:6]: row[6] for row in table}
    columns = [(projection, layer, ranks, algorithm) for projection, layer in SETS
               for ranks, algorithm in ((2, 'two_shot'), (4, 'two_shot'), (2, 'one_shot'))]
    heads = ['codec', 'bytes per tile'] + ['%s %d, TP%d %s' % c for c in columns]
    lines = [heads, ['---'] + ['---:'] * (len(heads) - 1)]
    for codec in ref.CODECS:
        lines.append([codec, '%d' % ref.encoded_size(ref.TILE, codec, 'fp16')] + [
            '%.1f' % value[p, l, n, 'fp16', codec, a] for p, l, n, a in columns])
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--reference', required=True, help='path of codec_reference.py')
    parser.add_argument('--check', action='store_true', help='compare with the CSV, write nothing')
    parser.add_argument('--table', action='store_true', help='print the table, write nothing')
    args = parser.parse_args()
    ref = load_reference(args.reference)
    table, path = list(rows(ref)), os.path.join(HERE, 'expected_sqnr.csv')
    if args.table:
        print(markdown(ref, table))
    elif args.check:
        with open(path) as f:
            if f.read() != csv(table):
                sys.exit('make_expected.py: %s differs from the reference' % path)
        print('same: %d rows' % len(table))
    else:
        with open(path, 'w') as f:
            f.write(csv(table))
        print('wrote %d rows' % len(table))


if __name__ == '__main__':
    main()
