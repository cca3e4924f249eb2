// The daemon's command line and configuration file: lines are arguments, up to an empty one; what
// follows is the file, which is named by --config last.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <bit>

#include "base/check.h"
#include "smp/node/daemon_options.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {
namespace {

// A file of these bytes that lies nowhere.
class ConfigFile {
 public:
  explicit ConfigFile(std::string_view text) : file_(memfd_create("unreft_fuzz", MFD_CLOEXEC)) {
    UNREFT_CHECK(file_ >= 0 &&
                 write(file_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  ~ConfigFile() { close(file_); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", file_); }

 private:
  const int file_;
};

// What was taken is within what the options say.
void CheckTaken(const smp::DaemonOptions& options) {
  UNREFT_CHECK(options.role == "node" || options.role == "meta");
  UNREFT_CHECK(std::has_single_bit(options.node.block_bytes));
  UNREFT_CHECK(options.node.nodes >= 1 && options.node.slots_per_rank >= 2);
  UNREFT_CHECK(options.node.restore_wait >= Duration::zero());
  UNREFT_CHECK(!options.common.run_dir.empty());
  UNREFT_CHECK(ParseByteSize(FormatByteSize(options.node.memory_bytes_max)).value() ==
               options.node.memory_bytes_max);
}

void Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"unreftd"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  CLI::App app;
  smp::DaemonOptions options;
  smp::AddDaemonOptions(app, options);
  const auto text = ParseOptions(app, static_cast<int>(argv.size()), argv.data());
  if (!text.ok() || !text->empty()) return;
  if (smp::FinishDaemonOptions(options).ok()) CheckTaken(options);
}

}  // namespace

std::vector<std::string> Seeds() {
  return {"--help\n",
          "--job\ngpt\n--node=3\n--nodes\n8\n--meta-endpoints\n10.0.0.1:2379\n--data-chunks\n3\n"
          "--parity-chunks\n2\n--presence-ttl-s\n10\n--block-bytes\n1MiB\n",
          "--role\nmeta\n--meta-listen\n127.0.0.1:0\n--meta-history-bytes-max=64MiB\n",
          "--spare\n--nodes=2\n--node=2\n--meta-endpoints=a:1,b:2\n--transport-tls-ca=ca.pem\n"
          "--transport-tls-cert=c.pem\n--transport-tls-key=k.pem\n",
          "--spare=false\n\njob = \"gpt\"\nscrub_interval_s = 60\nmemory_bytes_max = '1.5GiB'\n"
          "log_level = \"warn\"\npins = 2\n",
          "\n# a comment\nslots_per_rank = 3\nfailure_domain = \"rack 7\"\nspare = true\n"};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  std::string_view bytes = fuzz::Bytes(data, size);
  std::vector<std::string> arguments;
  while (!bytes.empty()) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
    if (line.empty()) break;
    arguments.emplace_back(line);
    // An argument ends at its first zero, and one that names a file would read any.
    arguments.back() = arguments.back().c_str();
    if (arguments.back().starts_with("--con")) return 0;
  }
  const fuzz::ConfigFile config(bytes);
  if (!bytes.empty()) arguments.push_back("--config=" + config.path());
  fuzz::Parse(arguments);
  (void)unreft::ParseByteSize(fuzz::Bytes(data, std::min<size_t>(size, 32)));
  return 0;
}
