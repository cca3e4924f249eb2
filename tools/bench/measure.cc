#include "tools/bench/measure.h"

#include <algorithm>
#include <chrono>

namespace unreft::bench {
namespace {

double Seconds(const Body& body) {
  body.before();
  const auto begin = std::chrono::steady_clock::now();
  body.timed();
  const auto end = std::chrono::steady_clock::now();
  body.after();
  return std::chrono::duration<double>(end - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

std::vector<double> MedianSeconds(int repetitions, const std::vector<Body>& bodies) {
  std::vector<std::vector<double>> seconds(bodies.size());
  for (int round = 0; round <= repetitions; ++round) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const double taken = Seconds(bodies[i]);
      if (round > 0) seconds[i].push_back(taken);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& values : seconds) medians.push_back(Median(std::move(values)));
  return medians;
}

}  // namespace unreft::bench
