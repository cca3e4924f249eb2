#include "base/framing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"

namespace unreft {
namespace {

static_assert(std::endian::native == std::endian::little);

// The header as it lies in the stream.
struct HeaderFields {
  uint32_t magic;
  uint16_t format;
  uint16_t min_reader;
  uint16_t type;
  uint16_t zero;  // reserved; a reader of format 1 does not look at it
  uint32_t payload_bytes;
  uint32_t crc32c;
};
static_assert(sizeof(HeaderFields) == kFrameHeaderBytes);
static_assert(offsetof(HeaderFields, crc32c) == 16);

constexpr size_t kCheckedHeaderBytes = offsetof(HeaderFields, crc32c);
constexpr uint32_t kMagic = 0x46524e55;  // "UNRF"

uint32_t FrameCrc(const FrameHeader& header, const std::string& payload) {
  const uint32_t crc = Crc32c(std::span(header).first(kCheckedHeaderBytes));
  return Crc32cExtend(crc, std::as_bytes(std::span(payload)));
}

}  // namespace

FrameHeader EncodeFrameHeader(const Frame& frame) {
  UNREFT_CHECK(frame.payload.size() <= UINT32_MAX, "the frame's length has 32 bits");
  HeaderFields fields{.magic = kMagic,
                      .format = kFrameFormat,
                      .min_reader = kFrameMinReader,
                      .type = frame.type,
                      .zero = 0,
                      .payload_bytes = static_cast<uint32_t>(frame.payload.size()),
                      .crc32c = 0};
  FrameHeader header = std::bit_cast<FrameHeader>(fields);
  fields.crc32c = FrameCrc(header, frame.payload);
  return std::bit_cast<FrameHeader>(fields);
}

absl::StatusOr<std::optional<Frame>> FrameDecoder::Next(std::span<const std::byte>& bytes) {
  if (!broken_.ok()) return broken_;
  if (header_filled_ < kFrameHeaderBytes) {
    TakeHeader(bytes);
    if (header_filled_ < kFrameHeaderBytes) return std::nullopt;
    broken_ = CheckHeader();
    if (!broken_.ok()) return broken_;
  }
  TakePayload(bytes);
  if (payload_.size() < payload_bytes_) return std::nullopt;
  absl::StatusOr<Frame> frame = Finish();
  if (!frame.ok()) return broken_ = frame.status();
  return std::move(*frame);
}

void FrameDecoder::TakeHeader(std::span<const std::byte>& bytes) {
  const size_t count = std::min(bytes.size(), kFrameHeaderBytes - header_filled_);
  std::copy_n(bytes.begin(), count, header_.begin() + static_cast<ptrdiff_t>(header_filled_));
  header_filled_ += count;
  bytes = bytes.subspan(count);
}

absl::Status FrameDecoder::CheckHeader() {
  const auto fields = std::bit_cast<HeaderFields>(header_);
  if (fields.magic != kMagic) {
    return absl::InvalidArgumentError(fmt::format(
        "a frame begins with the magic {:08x} (\"UNRF\"), found {:08x}", kMagic, fields.magic));
  }
  if (fields.min_reader > kFrameFormat) {
    return absl::InvalidArgumentError(
        fmt::format("a frame of format {} needs a reader of format {}, this one reads format {}",
                    fields.format, fields.min_reader, kFrameFormat));
  }
  if (fields.payload_bytes > frame_bytes_max_) {
    return absl::InvalidArgumentError(
        fmt::format("a frame of type {} announces {} payload bytes, frame_bytes_max is {}",
                    fields.type, fields.payload_bytes, frame_bytes_max_));
  }
  type_ = fields.type;
  payload_bytes_ = fields.payload_bytes;
  crc_ = fields.crc32c;
  return absl::OkStatus();
}

// Grows with what arrives, not with what the header announced: a lie costs its teller the bytes.
void FrameDecoder::TakePayload(std::span<const std::byte>& bytes) {
  const size_t count = std::min(bytes.size(), payload_bytes_ - payload_.size());
  payload_.append(reinterpret_cast<const char*>(bytes.data()), count);
  bytes = bytes.subspan(count);
}

absl::StatusOr<Frame> FrameDecoder::Finish() {
  const uint32_t crc = FrameCrc(header_, payload_);
  if (crc != crc_) {
    return absl::InvalidArgumentError(
        fmt::format("a frame of type {} with {} payload bytes says CRC32C {:08x}, found {:08x}",
                    type_, payload_bytes_, crc_, crc));
  }
  header_filled_ = 0;
  return Frame{.type = type_, .payload = std::exchange(payload_, {})};
}

}  // namespace unreft
