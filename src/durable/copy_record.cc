#include "durable/copy_record.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "base/crc32c.h"
#include "base/format.h"

namespace unreft::durable {
namespace {

constexpr uint64_t kMagic = 0x59504f4346524e55;  // "UNRFCOPY"
constexpr uint16_t kFormat = 1;
constexpr uint16_t kMinReader = 1;

// Which message follows. Persistent.
enum class Kind : uint32_t { kOrder = 1, kSlab = 2, kRecord = 3 };

struct Head {
  uint64_t magic = kMagic;
  uint16_t format = kFormat;
  uint16_t min_reader = kMinReader;
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

template <typename Message>
std::string Encode(Kind kind, const Message& message) {
  const std::string bytes = message.SerializeAsString();
  Head head;
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
  if (head.min_reader > kFormat) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it is of format {}, for readers of format {}; this release reads {}", file,
                    head.format, head.min_reader, kFormat));
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

}  // namespace

std::string ItemsFile(Rank rank) { return fmt::format("__{}_0.distcp", rank); }

std::string SlabFile(Rank rank) { return fmt::format("{}/rank_{}", kOwnDirectory, rank); }

std::string ReadyFile(NodeSlot node) { return fmt::format("{}/ready_{}", kOwnDirectory, node); }

std::string EncodeOrder(const CopyOrder& order) { return Encode(Kind::kOrder, order); }

std::string EncodeSlab(const CopySlab& slab) { return Encode(Kind::kSlab, slab); }

std::string EncodeRecord(const CopyRecord& record) { return Encode(Kind::kRecord, record); }

absl::StatusOr<CopyOrder> DecodeOrder(std::string_view bytes, std::string_view file) {
  return Decode<CopyOrder>(Kind::kOrder, bytes, file);
}

absl::StatusOr<CopySlab> DecodeSlab(std::string_view bytes, std::string_view file) {
  return Decode<CopySlab>(Kind::kSlab, bytes, file);
}

absl::StatusOr<CopyRecord> DecodeRecord(std::string_view bytes, std::string_view file) {
  return Decode<CopyRecord>(Kind::kRecord, bytes, file);
}

}  // namespace unreft::durable
