#include "durable/copy_record.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "base/crc32c.h"
#include "base/format.h"

namespace unreft::durable {
namespace {

constexpr uint64_t kMagic = 0x59504f4346524e55;  // "UNRFCOPY"
constexpr uint16_t kDcpFormat = 1;
constexpr uint16_t kSafetensorsFormat = 2;  // what reads DCP alone is to refuse it
constexpr uint16_t kNewestFormat = kSafetensorsFormat;

// Which message follows. Persistent.
enum class Kind : uint32_t { kOrder = 1, kSlab = 2, kRecord = 3, kReady = 4, kGo = 5 };

struct Head {
  uint64_t magic = kMagic;
  uint16_t format = kDcpFormat;
  uint16_t min_reader = kDcpFormat;
  Kind kind = Kind::kOrder;
  uint64_t bytes = 0;  // of the message
  uint32_t crc = 0;    // CRC32C of all bytes before it and of the message
  uint32_t reserved = 0;
};
static_assert(sizeof(Head) == 32);
constexpr size_t kCheckedBytes = offsetof(Head, crc);

uint32_t CrcOf(const Head& head, std::string_view message) {
  const uint32_t crc = Crc32c(std::as_bytes(std::span(&head, 1)).first(kCheckedBytes));
  return Crc32cExtend(crc, std::as_bytes(std::span(message)));
}

uint16_t FormatOf(CopyOrder::Format format) {
  return format == CopyOrder::DCP ? kDcpFormat : kSafetensorsFormat;
}

template <typename Message>
std::string Encode(Kind kind, const Message& message, uint16_t format) {
  const std::string bytes = message.SerializeAsString();
  Head head;
  head.format = format;
  head.min_reader = format;
  head.kind = kind;
  head.bytes = bytes.size();
  head.crc = CrcOf(head, bytes);
  std::string file(reinterpret_cast<const char*>(&head), sizeof(head));
  return file + bytes;
}

template <typename Message>
absl::StatusOr<Message> Decode(Kind kind, std::string_view bytes, std::string_view file) {
  Head head;
  if (bytes.size() < sizeof(head)) {
    return absl::DataLossError(
        fmt::format("{}: needed {} bytes, found {}", file, sizeof(head), bytes.size()));
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::string_view message = bytes.substr(sizeof(head));
  if (head.magic != kMagic || head.bytes != message.size()) {
    return absl::DataLossError(
        fmt::format("{}: it is no file of a durable copy, or cut: it has {} "
                    "bytes after its head, needed {}",
                    file, message.size(), head.bytes));
  }
  if (const uint32_t crc = CrcOf(head, message); crc != head.crc) {
    return absl::DataLossError(
        fmt::format("{}: it has CRC {:08x}, needed {:08x}", file, crc, head.crc));
  }
  if (head.min_reader > kNewestFormat) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it is of format {}, for readers of format {}; this release reads {}", file,
                    head.format, head.min_reader, kNewestFormat));
  }
  Message decoded;
  if (head.kind != kind ||
      !decoded.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::DataLossError(fmt::format("{}: it is of another kind, {}, needed {}", file,
                                           static_cast<uint32_t>(head.kind),
                                           static_cast<uint32_t>(kind)));
  }
  return decoded;
}

std::string WeightFilePrefix(Rank rank, uint64_t world) {
  return fmt::format("model-rank{:05}-of-{:05}-part", rank.value, world);
}

}  // namespace

std::string ItemsFile(Rank rank) { return fmt::format("__{}_0.distcp", rank); }

std::string SlabFile(Rank rank) { return fmt::format("{}/rank_{}", kOwnDirectory, rank); }

std::string ReadyFile(NodeSlot node) { return fmt::format("{}/ready_{}", kOwnDirectory, node); }

std::string WeightFileName(Rank rank, uint64_t world, uint64_t part) {
  return fmt::format("{}{}{}", WeightFilePrefix(rank, world), part, kWeightFileEnd);
}

bool IsWeightFileOf(std::string_view file, Rank rank, uint64_t world) {
  return file.starts_with(WeightFilePrefix(rank, world)) && file.ends_with(kWeightFileEnd);
}

std::string EncodeOrder(const CopyOrder& order) {
  return Encode(Kind::kOrder, order, FormatOf(order.format()));
}

std::string EncodeSlab(const CopySlab& slab) {
  return Encode(Kind::kSlab, slab, FormatOf(slab.format()));
}

std::string EncodeRecord(const CopyRecord& record) {
  return Encode(Kind::kRecord, record, FormatOf(record.order().format()));
}

std::string EncodeReady(const CopyReady& ready) {
  return Encode(Kind::kReady, ready, kSafetensorsFormat);
}

std::string EncodeGo(const CopyGo& go) { return Encode(Kind::kGo, go, kSafetensorsFormat); }

absl::StatusOr<CopyOrder> DecodeOrder(std::string_view bytes, std::string_view file) {
  absl::StatusOr<CopyOrder> order = Decode<CopyOrder>(Kind::kOrder, bytes, file);
  if (!order.ok() || CopyOrder::Format_IsValid(order->format())) return order;
  return absl::FailedPreconditionError(
      fmt::format("{}: it is of a copy in a format that only a newer release knows, {}", file,
                  static_cast<int>(order->format())));
}

absl::StatusOr<CopySlab> DecodeSlab(std::string_view bytes, std::string_view file) {
  return Decode<CopySlab>(Kind::kSlab, bytes, file);
}

absl::StatusOr<CopyRecord> DecodeRecord(std::string_view bytes, std::string_view file) {
  return Decode<CopyRecord>(Kind::kRecord, bytes, file);
}

absl::StatusOr<CopyReady> DecodeReady(std::string_view bytes, std::string_view file) {
  return Decode<CopyReady>(Kind::kReady, bytes, file);
}

absl::StatusOr<CopyGo> DecodeGo(std::string_view bytes, std::string_view file) {
  return Decode<CopyGo>(Kind::kGo, bytes, file);
}

}  // namespace unreft::durable
