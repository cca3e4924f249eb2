// The device code that libunreft carries: fat binaries that nvcc made when it was built.
#pragma once

#include <cstddef>
#include <span>

namespace unreft::snapshot {

// Of one kernel each; empty where no nvcc was when the library was built.
std::span<const unsigned char> ChecksumImage();
std::span<const unsigned char> ProbeImage();

}  // namespace unreft::snapshot
