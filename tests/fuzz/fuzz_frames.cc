// The frames of the local session: the stream's framing, and every message without it.
//
// An input is a stream; or, since its CRC would keep the fuzzer out, a byte that chooses a message
// and the payload of one.
#include <span>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/format_testing.h"

namespace unreft::fuzz {
namespace {

template <typename Message>
void Use(const Frame& frame) {
  const auto message = FromFrame<Message>(frame);
  if (!message.ok()) return;
  const Frame again = ToFrame(*message);
  UNREFT_CHECK(ToFrame(*FromFrame<Message>(again)).payload == again.payload);
}

void Use(const Frame& frame) {
  ForEachExampleMessage([&]<typename Message>(const Message&) {
    if (frame.type == static_cast<uint16_t>(Message::kType)) Use<Message>(frame);
  });
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = GoldenFiles("frame_");
  std::string all;
  for (const std::string& frame : seeds) all += frame;
  seeds.push_back(all);
  ForEachExampleMessage([&]<typename Message>(const Message& message) {
    seeds.push_back(static_cast<char>(Message::kType) + ToFrame(message).payload);
  });
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unreft;  // NOLINT(google-build-using-namespace): one function
  std::span bytes = std::as_bytes(std::span(data, size));
  FrameDecoder decoder(1 << 16);
  for (;;) {
    auto frame = decoder.Next(bytes);
    if (!frame.ok() || !frame->has_value()) break;
    fuzz::Use(**frame);
  }
  if (size == 0) return 0;
  const auto type = static_cast<uint16_t>(data[0] % (kMessageTypes + 1));
  fuzz::Use(Frame{type, std::string(fuzz::Bytes(data + 1, size - 1))});
  return 0;
}
