#include "tools/cli/metrics_merge.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

namespace unreft::cli {
namespace {

struct Family {
  std::string head;  // HELP and TYPE
  std::string samples;
};

class Families {
 public:
  // The family of that name; one seen first comes first.
  Family& Named(const std::string& name) {
    const auto [found, is_new] = index_.try_emplace(name, families_.size());
    if (is_new) families_.emplace_back();
    return families_[found->second];
  }

  std::string Text() const {
    std::string text;
    for (const Family& family : families_) text += family.head + family.samples;
    return text;
  }

 private:
  std::map<std::string, size_t> index_;
  std::vector<Family> families_;
};

void Add(const NodeMetrics& node, Families& families) {
  std::istringstream lines(node.text);
  std::string family;  // of the lines that follow
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash;
    std::string kind;
    std::string name;
    words >> hash >> kind >> name;
    if (hash == "#" && (kind == "HELP" || kind == "TYPE")) {
      family = name;
      Family& known = families.Named(family);
      if (known.head.find(line) == std::string::npos) known.head += line + "\n";
    } else if (!line.empty() && hash != "#") {
      families.Named(family).samples += line + "\n";
    }
  }
}

}  // namespace

std::string MergeMetrics(const std::string& job, const std::vector<NodeMetrics>& nodes) {
  Families families;
  Family& up = families.Named("unreft_node_up");
  up.head = "# HELP unreft_node_up 1: the node's daemon answers.\n# TYPE unreft_node_up gauge\n";
  for (const NodeMetrics& node : nodes) {
    up.samples += fmt::format("unreft_node_up{{job=\"{}\",node=\"{}\"}} {}\n", job, node.node,
                              node.up ? 1 : 0);
  }
  for (const NodeMetrics& node : nodes) Add(node, families);
  return families.Text();
}

}  // namespace unreft::cli
