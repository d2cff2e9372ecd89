// SPDX-License-Identifier: Apache-2.0
// The two families of SIMD codecs, for kernels/codec.cc, which gathers them behind KernelsFor().
//
// Thread safety: pure functions; the tables are constant.
#pragma once

#include "kernels/codec_kernels.h"

namespace qrd {

// nullptr for a codec of another family. Depends on the instruction set that Highway has chosen.
const CodecKernels* BlockCodecKernels(Codec codec);  // int and fp codecs, codec_block.cc
const CodecKernels* LpCodecKernels(Codec codec);     // codec_lp.cc

}  // namespace qrd
