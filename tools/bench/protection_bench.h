// ProtectionBench: what an aggregator computes for a stripe, in one pass and in separate ones.
#pragma once

#include <vector>

#include "tools/bench/record.h"

namespace unreft::bench {

// For RS(2,2), RS(4,2) and RS(6,2) the record crc_and_encode_rs_K_M: GB of data per second. At each
// position the CRCs of the k data blocks, their m parities, and the parities' CRCs; the reference
// is the time of the checksums alone and of the encoding alone, added.
std::vector<Record> RunProtection(int repetitions);

}  // namespace unreft::bench
