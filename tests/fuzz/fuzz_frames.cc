// Frame decoding: the stream's framing, then every message, from bytes that anybody could send.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "tests/unit/format_testing.h"

using namespace unreft;  // NOLINT(google-build-using-namespace): one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span bytes = std::as_bytes(std::span(data, size));
  FrameDecoder decoder(1 << 16);
  while (decoder.Next(bytes).ok() && !bytes.empty()) {
  }
  if (size == 0) return 0;
  // The CRC would keep the fuzzer out, so payloads are tried without it as well.
  const std::string payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  ForEachExampleMessage([&]<typename Message>(const Message&) {
    if (data[0] % (kMessageTypes + 1) != static_cast<uint16_t>(Message::kType)) return;
    const auto message = FromFrame<Message>({static_cast<uint16_t>(Message::kType), payload});
    if (!message.ok()) return;
    const Frame again = ToFrame(*message);
    UNREFT_CHECK(ToFrame(*FromFrame<Message>(again)).payload == again.payload);
  });
  return 0;
}
