// Pieces of a restore against their bytes, one by one.

#include "base/plan_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace unreft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Byte of the source to byte of the target.
using Bytes = std::vector<std::pair<uint64_t, uint64_t>>;

Bytes BytesOf(const PlanPiece& piece) {
  Bytes bytes;
  for (uint64_t row = 0; row < piece.rows; ++row) {
    for (uint64_t i = 0; i < piece.bytes; ++i) {
      bytes.emplace_back(piece.source_offset + row * piece.source_pitch + i,
                         piece.target_offset + row * piece.target_pitch + i);
    }
  }
  return bytes;
}

PlanPiece RandomPiece(Random& random) {
  PlanPiece piece{.source_offset = random.Below(40),
                  .target_offset = random.Below(40),
                  .bytes = 1 + random.Below(9),
                  .rows = 1 + random.Below(6)};
  if (piece.rows == 1) return piece;
  piece.source_pitch = piece.bytes + random.Below(30);
  piece.target_pitch = piece.bytes + random.Below(30);
  return piece;
}

TEST(PlanPieceTest, ClippedItIsItsBytesBetweenTheBoundsInAtMostThreePieces) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const PlanPiece piece = RandomPiece(random);
    const uint64_t begin = random.Below(120);
    const uint64_t end = begin + random.Below(120);
    Bytes expected = BytesOf(piece);
    std::erase_if(expected, [&](const auto& b) { return b.first < begin || b.first >= end; });

    std::vector<PlanPiece> clipped;
    ClipToSource(piece, begin, end, [&](const PlanPiece& part) { clipped.push_back(part); });
    ASSERT_LE(clipped.size(), 3u);
    Bytes found;
    for (const PlanPiece& part : clipped) {
      ASSERT_TRUE(PieceFits(part, piece.source_end(), UINT64_MAX));
      ASSERT_EQ(part.rows == 1, part.source_pitch == 0 && part.target_pitch == 0);
      const Bytes bytes = BytesOf(part);
      found.insert(found.end(), bytes.begin(), bytes.end());
    }
    ASSERT_EQ(found, expected);

    Bytes rows;
    ForEachRowIn(piece, begin, end, [&](uint64_t source, uint64_t target, uint64_t bytes) {
      ASSERT_GT(bytes, 0u);
      for (uint64_t i = 0; i < bytes; ++i) rows.emplace_back(source + i, target + i);
    });
    ASSERT_EQ(rows, expected);
  }
}

TEST(PlanPieceTest, ItsBlocksAreThoseOfItsBytes) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<PlanPiece> pieces = {RandomPiece(random), RandomPiece(random)};
    const uint64_t block_bytes = 1 + random.Below(40);
    std::set<uint64_t> expected;
    for (const PlanPiece& piece : pieces) {
      for (const auto& [source, target] : BytesOf(piece)) expected.insert(source / block_bytes);
    }
    const std::vector<uint64_t> found = BlocksOf(pieces, block_bytes);
    ASSERT_TRUE(std::ranges::equal(found, expected));
  }
}

TEST(PlanPieceTest, FitsWhereItsLastRowEnds) {
  const PlanPiece piece{.source_offset = 10,
                        .target_offset = 3,
                        .bytes = 4,
                        .rows = 5,
                        .source_pitch = 7,
                        .target_pitch = 4};
  EXPECT_EQ(piece.source_end(), 42u);
  EXPECT_TRUE(PieceFits(piece, 42, 23));
  EXPECT_FALSE(PieceFits(piece, 41, 23));
  EXPECT_FALSE(PieceFits(piece, 42, 22));
}

TEST(PlanPieceTest, AnEmptyPieceOneWhoseRowsOverlapAndOneBeyondAllNumbersDoNotFit) {
  const PlanPiece good{.bytes = 4, .rows = 3, .source_pitch = 4, .target_pitch = 4};
  ASSERT_TRUE(PieceFits(good, 12, 12));
  const auto fits = [&](auto change) {
    PlanPiece piece = good;
    change(piece);
    return PieceFits(piece, uint64_t{1} << 62, uint64_t{1} << 62);
  };
  EXPECT_FALSE(fits([](PlanPiece& p) { p.rows = 0; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.bytes = 0; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.source_pitch = 3; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.target_pitch = 0; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.bytes = UINT64_MAX; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.rows = UINT64_MAX; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.source_pitch = UINT64_MAX; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.target_pitch = UINT64_MAX / 2; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.source_offset = UINT64_MAX; }));
  EXPECT_FALSE(fits([](PlanPiece& p) { p.target_offset = UINT64_MAX - 1; }));
}

TEST(PlanPieceTest, PiecesOfASourceAreFound) {
  const std::vector<PlanPiece> pieces = {
      {.source = 0, .bytes = 1}, {.source = 2, .bytes = 2}, {.source = 2, .bytes = 3}};
  EXPECT_THAT(PiecesOf(pieces, 2), ElementsAre(pieces[1], pieces[2]));
  EXPECT_THAT(PiecesOf(pieces, 1), IsEmpty());
  EXPECT_THAT(PiecesOf(pieces, 3), IsEmpty());
}

// Against a count of every byte.
TEST(PlanPieceTest, TheFirstByteThatIsMissingOrWrittenTwiceIsFound) {
  std::map<int, int> found;  // of each kind: none, missing, twice
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    // Columns of a matrix, one of which may be wrong.
    const uint64_t rows = 1 + random.Below(5);
    const uint64_t width = 1 + random.Below(12);
    const uint64_t bytes = rows * width;
    std::vector<PlanPiece> pieces;
    for (uint64_t column = 0; column < width;) {
      const uint64_t columns = 1 + random.Below(width - column);
      PlanPiece piece{.target_offset = column, .bytes = columns, .rows = rows};
      if (rows > 1) piece.source_pitch = piece.target_pitch = width;
      pieces.push_back(piece);
      column += columns;
    }
    PlanPiece& wrong = pieces[random.Below(pieces.size())];
    const PlanPiece right = wrong;
    if (random.OneIn(3)) wrong.target_offset = random.Below(bytes);
    if (random.OneIn(3)) wrong.bytes = 1 + random.Below(width);
    if (random.OneIn(3) && rows > 1) wrong.rows = 2 + random.Below(rows - 1);
    if (!PieceFits(wrong, UINT64_MAX, bytes)) wrong = right;
    std::swap(pieces[0], pieces[random.Below(pieces.size())]);

    std::vector<int> written(bytes);
    for (const PlanPiece& piece : pieces) {
      for (const auto& [source, target] : BytesOf(piece)) ++written[target];
    }
    const auto first = std::ranges::find_if(written, [](int times) { return times != 1; });
    const auto flaw = FindCoverageFlaw(pieces, bytes);
    ASSERT_EQ(flaw.has_value(), first != written.end());
    ++found[!flaw ? 0 : flaw->is_written_twice ? 2 : 1];
    if (!flaw) continue;
    ASSERT_EQ(flaw->at, static_cast<uint64_t>(first - written.begin()));
    ASSERT_EQ(flaw->is_written_twice, *first > 1);
  }
  EXPECT_GT(found[0], 1000);
  EXPECT_GT(found[1], 1000);
  EXPECT_GT(found[2], 1000);
}

TEST(PlanPieceTest, NoPiecesWriteNothing) {
  EXPECT_EQ(FindCoverageFlaw({}, 0), std::nullopt);
  EXPECT_EQ(FindCoverageFlaw({}, 1)->at, 0u);
}

TEST(PlanPieceTest, WhereBytesMayBeLeftOutNoneIsWrittenTwiceAllTheSame) {
  const PlanPiece first{0, 0, 0, 2, 4};
  const PlanPiece second{0, 0, 8, 10, 4};
  EXPECT_EQ(FindCoverageFlaw({{first, second}}, 20)->at, 0u);
  EXPECT_EQ(FindCoverageFlaw({{first, second}}, 20, /*may_leave_out=*/true), std::nullopt);
  EXPECT_EQ(FindCoverageFlaw({}, 20, /*may_leave_out=*/true), std::nullopt);
  const PlanPiece across{0, 0, 0, 5, 6};
  const auto flaw = FindCoverageFlaw({{first, across, second}}, 20, /*may_leave_out=*/true);
  ASSERT_TRUE(flaw);
  EXPECT_EQ(flaw->at, 5u);
  EXPECT_TRUE(flaw->is_written_twice);
}

}  // namespace
}  // namespace unreft
