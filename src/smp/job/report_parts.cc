#include "smp/job/report_parts.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <limits>

namespace unreft::smp {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr uint32_t kVersionsTag = WireFormatLite::MakeTag(
    NodeReport::kVersionsFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

CodedInputStream InputOf(std::string_view bytes) {
  return CodedInputStream(reinterpret_cast<const uint8_t*>(bytes.data()),
                          static_cast<int>(bytes.size()));
}

bool Merge(std::string_view fields, NodeReport& report) {
  CodedInputStream input = InputOf(fields);
  return report.MergeFromCodedStream(&input) && input.ConsumedEntireMessage();
}

}  // namespace

bool CutReport(std::string_view report, ReportParts& parts) {
  parts.rest.Clear();
  parts.versions.clear();
  if (report.size() > std::numeric_limits<int>::max()) return false;
  CodedInputStream input = InputOf(report);
  const auto position = [&] { return static_cast<size_t>(input.CurrentPosition()); };
  size_t rest = 0;  // where fields begin that were not read
  while (true) {
    const size_t field = position();
    const uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    if (tag != kVersionsTag) {
      if (!WireFormatLite::SkipField(&input, tag)) return false;
      continue;
    }
    int size = 0;
    if (!input.ReadVarintSizeAsInt(&size)) return false;
    const size_t begin = position();
    if (!input.Skip(size)) return false;
    if (!Merge(report.substr(rest, field - rest), parts.rest)) return false;
    parts.versions.push_back(report.substr(begin, static_cast<size_t>(size)));
    rest = begin + static_cast<size_t>(size);
  }
  return input.ConsumedEntireMessage() && Merge(report.substr(rest), parts.rest);
}

}  // namespace unreft::smp
