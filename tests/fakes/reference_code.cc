#include "tests/fakes/reference_code.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace unreft::ec {
namespace {

using Row = std::vector<uint8_t>;

// GfMultiply of all pairs.
const std::array<std::array<uint8_t, 256>, 256>& Products() {
  static const auto kProducts = [] {
    std::array<std::array<uint8_t, 256>, 256> products;
    for (unsigned a = 0; a < 256; ++a) {
      for (unsigned b = 0; b < 256; ++b) {
        products[a][b] = GfMultiply(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
      }
    }
    return products;
  }();
  return kProducts;
}

// What chunk `chunk` is of the data: itself, or the Cauchy row of a parity.
Row GeneratorRow(CodeShape shape, uint32_t chunk) {
  Row row(shape.k, 0);
  for (uint32_t j = 0; j < shape.k; ++j) {
    if (chunk >= shape.k) {
      row[j] = GfInverse(static_cast<uint8_t>(chunk ^ j));
    } else if (chunk == j) {
      row[j] = 1;
    }
  }
  return row;
}

// row += factor * other
void AddMultiple(Row& row, uint8_t factor, const Row& other) {
  const auto& product = Products()[factor];
  for (size_t i = 0; i < row.size(); ++i) row[i] ^= product[other[i]];
}

// The inverse of a square matrix that has one.
std::vector<Row> Inverse(std::vector<Row> matrix) {
  const size_t order = matrix.size();
  std::vector<Row> inverse(order, Row(order, 0));
  for (size_t i = 0; i < order; ++i) inverse[i][i] = 1;
  for (size_t column = 0; column < order; ++column) {
    size_t pivot = column;
    while (pivot < order && matrix[pivot][column] == 0) ++pivot;
    UNREFT_CHECK(pivot < order, "k chunks that do not give the data");
    std::swap(matrix[pivot], matrix[column]);
    std::swap(inverse[pivot], inverse[column]);
    const uint8_t scale = GfInverse(matrix[column][column]) ^ uint8_t { 1 };
    AddMultiple(matrix[column], scale, Row(matrix[column]));
    AddMultiple(inverse[column], scale, Row(inverse[column]));
    for (size_t row = 0; row < order; ++row) {
      const uint8_t factor = row == column ? uint8_t{0} : matrix[row][column];
      AddMultiple(matrix[row], factor, matrix[column]);
      AddMultiple(inverse[row], factor, inverse[column]);
    }
  }
  return inverse;
}

// target += factor * source
void AddBytes(std::span<std::byte> target, uint8_t factor, std::span<const std::byte> source) {
  if (factor == 0) return;
  const auto& product = Products()[factor];
  for (size_t at = 0; at < source.size(); ++at) {
    target[at] ^= std::byte{product[std::to_integer<uint8_t>(source[at])]};
  }
}

}  // namespace

uint8_t GfMultiply(uint8_t a, uint8_t b) {
  unsigned product = 0;
  for (unsigned power = a; b != 0; b >>= 1) {
    if (b & 1) product ^= power;
    power <<= 1;
    if (power & 0x100) power ^= 0x11d;
  }
  return static_cast<uint8_t>(product);
}

uint8_t GfInverse(uint8_t a) {
  UNREFT_CHECK(a != 0);
  unsigned b = 1;
  while (Products()[a][b] != 1) ++b;
  return static_cast<uint8_t>(b);
}

ReferenceCode::ReferenceCode(CodeShape shape) : shape_(shape) {
  UNREFT_CHECK(CheckShape(shape).ok());
  for (uint32_t chunk = 0; chunk < shape.n(); ++chunk) {
    generator_.push_back(GeneratorRow(shape, chunk));
  }
}

void ReferenceCode::Encode(std::span<const std::span<const std::byte>> data,
                           std::span<const std::span<std::byte>> parity) const {
  CheckEncode(shape_, data, parity);
  for (uint32_t p = 0; p < shape_.m; ++p) {
    const Row& row = generator_[shape_.k + p];
    std::fill(parity[p].begin(), parity[p].end(), std::byte{0});
    for (uint32_t j = 0; j < shape_.k; ++j) AddBytes(parity[p], row[j], data[j]);
  }
}

absl::Status ReferenceCode::Reconstruct(std::span<const SourceChunk> sources,
                                        std::span<const TargetChunk> targets) const {
  if (absl::Status status = CheckReconstruct(shape_, sources, targets); !status.ok()) return status;
  // source s = rows[s] . data, so data j = inverse[j] . sources.
  std::vector<Row> rows;
  for (const SourceChunk& source : sources) rows.push_back(generator_[source.index]);
  const std::vector<Row> inverse = Inverse(std::move(rows));
  for (const TargetChunk& target : targets) {
    const Row& generator = generator_[target.index];
    Row row(shape_.k, 0);
    for (uint32_t j = 0; j < shape_.k; ++j) AddMultiple(row, generator[j], inverse[j]);
    std::fill(target.bytes.begin(), target.bytes.end(), std::byte{0});
    for (uint32_t s = 0; s < shape_.k; ++s) AddBytes(target.bytes, row[s], sources[s].bytes);
  }
  return absl::OkStatus();
}

}  // namespace unreft::ec
