// Framing: how the frames of the local session lie in its byte stream.
//
// A frame is a header of 20 bytes, little-endian, and its payload:
//
//    0        4        6            8      10       12              16        20
//    +--------+--------+------------+------+--------+---------------+---------+---------
//    | "UNRF" | format | min_reader | type | zero   | payload_bytes | crc32c  | payload
//    +--------+--------+------------+------+--------+---------------+---------+---------
//      u32      u16      u16          u16    u16      u32             u32
//
// The CRC32C covers the first 16 bytes of the header, then the payload. `min_reader` is the oldest
// format whose reader understands the frame; magic and the two numbers after it never move, so any
// reader can refuse by name. Pure; not thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/channel.h"

namespace unreft {

inline constexpr size_t kFrameHeaderBytes = 20;
inline constexpr uint16_t kFrameFormat = 1;
inline constexpr uint16_t kFrameMinReader = 1;  // written into every frame

using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

// The header to send before `frame.payload`, which has at most UINT32_MAX bytes.
FrameHeader EncodeFrameHeader(const Frame& frame);

// Takes a byte stream in pieces of any size and gives its frames.
class FrameDecoder {
 public:
  explicit FrameDecoder(size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

  // Removes bytes from the front of `bytes` until a frame is complete, and returns that frame, or
  // nothing when the bytes ran out first. InvalidArgument, naming what was needed and found, on a
  // wrong magic, a frame for newer readers, a payload over `frame_bytes_max`, or a wrong CRC; the
  // stream is lost then, and every later call returns the same.
  absl::StatusOr<std::optional<Frame>> Next(std::span<const std::byte>& bytes);

  // Whether the stream may end here: no frame has begun that is not complete.
  bool at_boundary() const { return header_filled_ == 0; }

 private:
  absl::Status CheckHeader();
  absl::StatusOr<Frame> Finish();
  void TakeHeader(std::span<const std::byte>& bytes);
  void TakePayload(std::span<const std::byte>& bytes);

  const size_t frame_bytes_max_;
  absl::Status broken_;
  FrameHeader header_{};
  size_t header_filled_ = 0;
  // Of the header once it is filled.
  uint16_t type_ = 0;
  size_t payload_bytes_ = 0;
  uint32_t crc_ = 0;
  std::string payload_;
};

}  // namespace unreft
