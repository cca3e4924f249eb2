// RecordCopy: the job's shared records as a node keeps them, byte for byte, whatever becomes of the
// meta store (docs/protocol.md, rule 3; docs/formats/kept_records.md). Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "meta/job_store.h"

namespace unreft::meta {

inline constexpr uint64_t kCopyMagic = 0x59504f4346524e55;  // "UNRFCOPY"
inline constexpr uint16_t kCopyFormat = 1;
inline constexpr uint16_t kCopyMinReader = 1;
inline constexpr size_t kCopiedRecords = 5;

// Before the bytes of the records, which follow each other in the order of JobRecords.
struct CopyHeader {
  uint64_t magic = kCopyMagic;
  uint16_t format = kCopyFormat;
  uint16_t min_reader = kCopyMinReader;
  uint32_t crc = 0;  // CRC32C of all other bytes, the records' too
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  std::array<char, 16> store_id = {};
  std::array<uint32_t, kCopiedRecords> bytes = {};  // of each record; 0: there is none
  uint32_t reserved = 0;
};
static_assert(sizeof(CopyHeader) == 72 && offsetof(CopyHeader, epoch) == 16);

struct RecordCopy {
  Stamp stamp;  // 0, 0: nothing was kept
  std::string store_id;
  JobRecords records;  // `modified` is the stamp's sequence of those that there are
};

std::string EncodeCopy(const JobState& job);
// Puts the CRC of `bytes`, a copy and nothing else, into its header.
void SealCopy(std::string& bytes);

// Bytes beyond the copy's end are left alone. DataLoss for what is torn, or holds a record that is
// wrong (CheckRecord); FailedPrecondition for a format of later readers.
absl::StatusOr<RecordCopy> DecodeCopy(std::span<const std::byte> bytes);

}  // namespace unreft::meta
