#include "snapshot/cuda_image.h"

extern "C" {
extern const unsigned char unreft_checksum_image[];
extern const unsigned long unreft_checksum_image_bytes;
extern const unsigned char unreft_probe_image[];
extern const unsigned long unreft_probe_image_bytes;
}

namespace unreft::snapshot {

std::span<const unsigned char> ChecksumImage() {
  return {unreft_checksum_image, unreft_checksum_image_bytes};
}

std::span<const unsigned char> ProbeImage() {
  return {unreft_probe_image, unreft_probe_image_bytes};
}

}  // namespace unreft::snapshot
