#include "meta/record_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/bounds.h"
#include "base/crc32c.h"
#include "meta/record_checks.h"

namespace unreft::meta {
namespace {

static_assert(sizeof(CopyHeader::store_id) == kStoreIdBytes);

constexpr size_t kCrcAt = offsetof(CopyHeader, crc);

// Of a copy of just that length.
uint32_t CrcOf(std::span<const std::byte> bytes) {
  return Crc32cExtend(Crc32c(bytes.first(kCrcAt)), bytes.subspan(kCrcAt + sizeof(CopyHeader::crc)));
}

template <typename Message>
absl::Status Take(std::string_view name, std::string_view& left, uint32_t bytes, uint64_t sequence,
                  Shared<Message>& into) {
  if (bytes == 0) return absl::OkStatus();
  into.bytes = left.substr(0, bytes);
  left.remove_prefix(bytes);
  into.modified = Revision{sequence};
  if (!into.value.ParseFromString(into.bytes)) {
    return absl::DataLossError(
        fmt::format("the kept record {} of {} bytes does not parse", name, bytes));
  }
  if (absl::Status status = CheckRecord(into.value); !status.ok()) {
    return absl::DataLossError(
        fmt::format("the kept record {} is wrong: {}", name, status.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<CopyHeader> ReadHeader(std::span<const std::byte> bytes) {
  CopyHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::DataLossError(fmt::format("a copy of the records: needed {} bytes, found {}",
                                           sizeof(header), bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kCopyMagic) {
    return absl::DataLossError("a copy of the records: it does not begin as one");
  }
  const uint64_t whole =
      std::accumulate(header.bytes.begin(), header.bytes.end(), uint64_t{sizeof(header)});
  if (whole > bytes.size()) {
    return absl::DataLossError(
        fmt::format("a copy of the records: needed {} bytes, found {}", whole, bytes.size()));
  }
  if (CrcOf(bytes.first(whole)) != header.crc) {
    return absl::DataLossError("a copy of the records: its CRC is wrong");
  }
  if (header.min_reader > kCopyFormat) {
    return absl::FailedPreconditionError(
        fmt::format("a copy of the records: written in format {} for readers of {} and up, this "
                    "reader knows {}",
                    header.format, header.min_reader, kCopyFormat));
  }
  if (header.epoch > kEpochMax) {
    return absl::DataLossError(
        fmt::format("a copy of the records: epoch {}, the largest is {}", header.epoch, kEpochMax));
  }
  return header;
}

}  // namespace

std::string EncodeCopy(const JobState& job) {
  CopyHeader header;
  const Stamp stamp = job.stamp();
  header.epoch = stamp.epoch;
  header.sequence = stamp.sequence;
  job.store_id.copy(header.store_id.data(), header.store_id.size());
  const std::array<std::string_view, kCopiedRecords> records = {
      job.view.bytes, job.timeline.bytes, job.commit.bytes, job.abandoned.bytes, job.pins.bytes};
  size_t whole = sizeof(header);
  for (size_t i = 0; i < records.size(); ++i) {
    header.bytes[i] = static_cast<uint32_t>(records[i].size());
    whole += records[i].size();
  }
  std::string bytes;
  bytes.reserve(whole);
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const std::string_view record : records) bytes += record;
  SealCopy(bytes);
  return bytes;
}

void SealCopy(std::string& bytes) {
  const uint32_t crc = CrcOf(std::as_bytes(std::span(bytes)));
  std::memcpy(bytes.data() + kCrcAt, &crc, sizeof(crc));
}

absl::StatusOr<RecordCopy> DecodeCopy(std::span<const std::byte> bytes) {
  const absl::StatusOr<CopyHeader> header = ReadHeader(bytes);
  if (!header.ok()) return header.status();
  RecordCopy copy;
  copy.stamp = {header->epoch, header->sequence};
  copy.store_id.assign(header->store_id.begin(), header->store_id.end());
  std::string_view left(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  left.remove_prefix(sizeof(CopyHeader));
  absl::Status status;
  size_t next = 0;
  const auto take = [&](std::string_view name, auto& record) {
    status.Update(Take(name, left, header->bytes[next++], header->sequence, record));
  };
  take("view", copy.records.view);
  take("timeline", copy.records.timeline);
  take("commit", copy.records.commit);
  take("abandoned", copy.records.abandoned);
  take("pins", copy.records.pins);
  if (!status.ok()) return status;
  return copy;
}

}  // namespace unreft::meta
