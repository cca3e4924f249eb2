// The device code that libunreft carries: fat binaries that nvcc made when it was built.
#pragma once

#include <cstddef>
#include <span>

namespace unreft::snapshot {

// Of the checksum's kernel; empty where no nvcc was when the library was built.
std::span<const unsigned char> ChecksumImage();

}  // namespace unreft::snapshot
