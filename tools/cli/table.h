// Table: aligned columns of text for people. A value.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace unreft::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> head) { Add(std::move(head)); }

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }

  // Numbers to the right, words to the left, two spaces between columns, a newline after each row.
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// `record[key]` as a table shows it: "-" for what is absent, null or empty.
std::string Cell(const nlohmann::json& record, std::string_view key);

// "1.5 GiB".
std::string HumanBytes(uint64_t bytes);

// "1 segment", "2 segments".
std::string Count(uint64_t count, std::string_view what);

// `record[key]` in such units.
std::string BytesCell(const nlohmann::json& record, std::string_view key);

// "3:120" of a {"timeline","step"}.
std::string VersionCell(const nlohmann::json& version);

}  // namespace unreft::cli
