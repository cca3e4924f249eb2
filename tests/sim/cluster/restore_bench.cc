// unreft_restore_bench: what the nodes of a job read from each other when it goes on in another
// layout, against what they need of each other. Simulated nodes with the real daemon core and the
// real client: tensor parallel before, of one rank a node, and data parallel after it, of two.
//
//   unreft_restore_bench [--out DIR] [--nodes N]
//
// Each node needs the whole state but for what it has itself. Without a loss it should read just
// that. With a node lost, each of the blocks that it had may be decoded once, of k chunks.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/sim/cluster/reshaping.h"
#include "tools/bench/record.h"

namespace unreft::sim {
namespace {

// Of what is needed: a block that both ranks of a node want is read twice now and then. How often
// differs by hundredths of a percent from draw to draw, which is more than what one lost node of
// many has: that it is decoded once is shown by reshaping_test, of few nodes.
constexpr double kBeyondNeed = 1.05;

struct Shape {
  uint32_t k;
  uint32_t m;
};

bool Measure(uint64_t nodes, Shape shape, std::vector<bench::Record>& records) {
  ReshapingOptions options{
      .nodes = nodes, .data_chunks = shape.k, .parity_chunks = shape.m, .seed = nodes};
  const auto whole = Reshape(options);
  options.with_loss = true;
  const auto lost = Reshape(options);
  for (const auto& measured : {whole, lost}) {
    if (measured.ok()) continue;
    fmt::print(stderr, "unreft_restore_bench: {}\n", std::string(measured.status().message()));
    return false;
  }
  const std::string code = fmt::format("rs_{}_{}", shape.k, shape.m);
  records.push_back({.name = fmt::format("reshape_{}_nodes_{}", nodes, code),
                     .value = whole->read,
                     .unit = "bytes read",
                     .reference_name = "needed of other nodes",
                     .reference = whole->needed,
                     .target = kBeyondNeed,
                     .less_is_better = true});
  records.push_back({.name = fmt::format("reshape_{}_nodes_{}_lost_one", nodes, code),
                     .value = lost->read,
                     .unit = "bytes read",
                     .reference_name = "wanted at most",
                     .reference = kBeyondNeed * lost->needed + shape.k * lost->lost,
                     .target = 1.0,
                     .less_is_better = true});
  return true;
}

int Main(int argc, char** argv) {
  CLI::App app("What nodes read when a job goes on in another layout");
  std::string out = "build/bench";
  uint64_t nodes = 64;
  app.add_option("--out", out, "directory of the JSON records");
  app.add_option("--nodes", nodes, "of the job")->check(CLI::Range(8, 256));
  CLI11_PARSE(app, argc, argv);

  std::vector<bench::Record> records;
  for (const Shape shape : {Shape{2, 2}, Shape{6, 2}}) {
    if (!Measure(nodes, shape, records)) return 1;
  }
  for (const bench::Record& record : records) Print(record);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  const absl::Status status = Write(records, out + "/restore.json");
  if (!status.ok()) fmt::print(stderr, "unreft_restore_bench: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace unreft::sim

int main(int argc, char** argv) { return unreft::sim::Main(argc, argv); }
