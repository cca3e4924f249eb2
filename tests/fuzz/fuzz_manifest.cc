// Manifests: what is taken is written and taken again, and its parts are where a restore reads;
// read in place it is the same.
#include <algorithm>

#include "base/check.h"
#include "layout/manifest_view.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {

std::vector<std::string> Seeds() { return GoldenFiles("manifest"); }

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using unreft::layout::DecodeManifest;
  const std::string_view bytes = unreft::fuzz::Bytes(data, size);
  const auto manifest = DecodeManifest(bytes);
  unreft::layout::ManifestView view;
  UNREFT_CHECK(view.Read(bytes) == manifest.status());
  if (!manifest.ok()) return 0;
  UNREFT_CHECK(std::ranges::equal(view.parts(), manifest->parts));
  UNREFT_CHECK(std::ranges::equal(view.tensors(), manifest->tensors, {}, unreft::layout::SpecOf));
  for (const auto& part : manifest->parts) {
    const auto& spec = manifest->tensors.at(part.tensor);
    UNREFT_CHECK(part.shard_begin + part.bytes <= unreft::ShardBytes(spec));
    UNREFT_CHECK(part.slab_offset + part.bytes <= manifest->data_bytes);
  }
  const auto again = DecodeManifest(unreft::layout::EncodeManifest(*manifest));
  UNREFT_CHECK(again.ok() && *again == *manifest);
  return 0;
}
