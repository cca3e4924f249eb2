// Manifests: what is taken is written and taken again, and its parts are where a restore reads.
#include "base/check.h"
#include "layout/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {

std::vector<std::string> Seeds() { return GoldenFiles("manifest"); }

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using unreft::layout::DecodeManifest;
  const auto manifest = DecodeManifest(unreft::fuzz::Bytes(data, size));
  if (!manifest.ok()) return 0;
  for (const auto& part : manifest->parts) {
    const auto& spec = manifest->tensors.at(part.tensor);
    UNREFT_CHECK(part.shard_begin + part.bytes <= unreft::ShardBytes(spec));
    UNREFT_CHECK(part.slab_offset + part.bytes <= manifest->data_bytes);
  }
  const auto again = DecodeManifest(unreft::layout::EncodeManifest(*manifest));
  UNREFT_CHECK(again.ok() && *again == *manifest);
  return 0;
}
